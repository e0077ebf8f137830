#pragma once
// Glob patterns as MATCH and KEYS have them: * ? [a-c] [^x] and a backslash in front of any of
// them.

#include <string_view>

namespace kvferry::node {

// Time: the product of both lengths at most.
[[nodiscard]] bool glob_match(std::string_view pattern, std::string_view text) noexcept;

}  // namespace kvferry::node
