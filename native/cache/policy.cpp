#include "cache/policy.hpp"

#include <cctype>

namespace kvferry::cache {
namespace {

std::string plain(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (c != '-') text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

}  // namespace

std::string policy_names() {
  std::string names;
  for (const NamedPolicy& policy : kPolicies) {
    if (!names.empty()) names += ", ";
    names += policy.name;
  }
  return names;
}

Result<std::unique_ptr<Policy>> make_policy(std::string_view name, Entries& entries) {
  const std::string wanted = plain(name);
  for (const NamedPolicy& policy : kPolicies) {
    if (plain(policy.name) == wanted) return policy.make(entries);
  }
  return Error{Errc::kInvalidArgument, "there is no eviction policy '" + std::string(name) +
                                           "'; there are " + policy_names()};
}

}  // namespace kvferry::cache
