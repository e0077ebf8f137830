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
    Named{"lru", &make_lru},        Named{"lfu", &make_lfu}, Named{"fifo", &make_fifo},
    Named{"s3fifo", &make_s3_fifo}, Named{"arc", &make_arc}, Named{"wtinylfu", &make_w_tiny_lfu},
};

}  // namespace

std::string_view policy_names() noexcept { return "LRU, LFU, FIFO, S3-FIFO, ARC, W-TinyLFU"; }

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
