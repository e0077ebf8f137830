# The libraries of the controller's page: from the package registry into the Python package, in the
# exact versions of package.json. Without Node or a network the page is left out, and says so.
find_program(KVFERRY_NPM npm)
set(page_build ${CMAKE_BINARY_DIR}/page)
set(page_wanted ${CMAKE_SOURCE_DIR}/tools/page/package.json)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page_wanted})
file(SHA256 ${page_wanted} page_version)
set(page_stamp ${page_build}/complete-${page_version})
if(KVFERRY_NPM AND NOT EXISTS ${page_stamp})
  file(REMOVE_RECURSE ${page_build})
  file(COPY ${page_wanted} DESTINATION ${page_build})
  execute_process(
    COMMAND ${KVFERRY_NPM} install --no-package-lock --ignore-scripts --no-audit --no-fund --silent
    WORKING_DIRECTORY ${page_build} TIMEOUT 120 RESULT_VARIABLE page_failed)
  if(page_failed)
    message(WARNING "the controller's page is left out: npm install has failed")
  else()
    file(TOUCH ${page_stamp})
  endif()
endif()
if(EXISTS ${page_stamp})
  set(page_htmx ${page_build}/node_modules/htmx.org)
  install(FILES ${page_htmx}/dist/htmx.min.js ${page_htmx}/dist/ext/hx-sse.min.js
    ${page_htmx}/LICENSE COMPONENT python DESTINATION kvferry/sharing/controller/page/lib)
endif()
