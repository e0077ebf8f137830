// kvferry._native: the table of contents. Each topic has a file of its own.

#include <nanobind/nanobind.h>

namespace kvferry {
void bind_blocks(nanobind::module_& module);
void bind_cache(nanobind::module_& module);
void bind_client(nanobind::module_& module);
void bind_codec(nanobind::module_& module);
void bind_connector(nanobind::module_& module);
void bind_credentials(nanobind::module_& module);
void bind_directory(nanobind::module_& module);
void bind_on_demand_pages(nanobind::module_& module);
void bind_lookups(nanobind::module_& module);
void bind_node(nanobind::module_& module);
void bind_pages(nanobind::module_& module);
void bind_pool(nanobind::module_& module);
void bind_shared(nanobind::module_& module);
void bind_tokens(nanobind::module_& module);
}  // namespace kvferry

NB_MODULE(_native, module) {
  module.doc() = "The native core of kvferry. Use the classes of the kvferry package instead.";
  // Threads that are parked at exit, and a forked child, keep what they use; that is no leak.
  nanobind::set_leak_warnings(false);
  kvferry::bind_credentials(module);
  kvferry::bind_client(module);
  kvferry::bind_connector(module);
  kvferry::bind_shared(module);
  kvferry::bind_pool(module);
  kvferry::bind_tokens(module);
  kvferry::bind_pages(module);
  kvferry::bind_codec(module);
  kvferry::bind_blocks(module);
  kvferry::bind_lookups(module);
  kvferry::bind_cache(module);
  kvferry::bind_directory(module);
  kvferry::bind_on_demand_pages(module);
  kvferry::bind_node(module);
}
