#include "base/errors.hpp"

#include <cstring>

namespace kvferry {

Error system_error(std::string_view action, int sys_errno, Errc code) {
  char text[128];
  const char* message = ::strerror_r(sys_errno, text, sizeof text);  // GNU form
  std::string context(action);
  context += ": ";
  context += message;
  return Error{code, std::move(context)};
}

}  // namespace kvferry
