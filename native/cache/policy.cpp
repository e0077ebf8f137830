#include "cache/policy.hpp"

#include <array>
#include <cctype>
#include <string>

namespace kvferry::cache {
namespace {

struct Named {
  std::string_view plain;  // lower case, no hyphens
  std::unique_ptr<Policy> (*make)(Entries&);
};

constexpr std::array kPolicies = {
    Named{"lru", &make_lru},
    Named{"fifo", &make_fifo},
};

}  // namespace

std::string_view policy_names() noexcept { return "LRU, FIFO"; }

Result<std::unique_ptr<Policy>> make_policy(std::string_view name, Entries& entries) {
  std::string plain;
  for (const char c : name) {
    if (c != '-') plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  for (const Named& policy : kPolicies) {
    if (policy.plain == plain) return policy.make(entries);
  }
  return Error{Errc::kInvalidArgument, "there is no eviction policy '" + std::string(name) +
                                           "'; there are " + std::string(policy_names())};
}

}  // namespace kvferry::cache
