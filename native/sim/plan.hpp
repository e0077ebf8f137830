#pragma once
// Plan: what kind of schedule a seed makes: the servers, the client, the callers, the trouble.
//
// Most schedules are short and simple, because those find most and run fastest; each feature
// appears in some, and every pair of features meets in a few million of them.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "redis/config.hpp"
#include "sim/random.hpp"

namespace kvferry::sim {

// A defect that is put into the driver or a server, to prove that it would be found.
enum class Plant : std::uint8_t {
  kNone,
  kSwapReplies,       // two replies of one connection change places
  kDropReply,         // one never comes, and the next ones move up
  kForeignValue,      // a GET is answered with the value of another key
  kLostWrite,         // a SET is answered OK and not done
  kTornWrite,         // bytes of a SET change on the way
  kSettleTwice,       // a command that was redirected settles as well
  kForgetCommand,     // a connection that ends forgets a command
  kAskWithoutAsking,  // ASK is followed without an ASKING
  kStaleNode,         // MOVED is answered by asking the same node again
  kLateLanding,       // a value lands after its batch is finished
  kLateSending,       // a value is sent after its batch is finished
  kLeakStream,        // a place among the streams is not given back
  kLateTimer,         // a worker sleeps past its timers
  kForgetCancel,      // a cancelled batch is not let go
  kStaleMap,          // the map is never looked at again
};
inline constexpr std::size_t kPlantCount = 16;

[[nodiscard]] std::string_view name(Plant plant) noexcept;
[[nodiscard]] std::optional<Plant> plant_named(std::string_view name) noexcept;

// How many bytes move at a time.
enum class Pieces : std::uint8_t { kWhole, kMixed, kTiny };

struct Plan {
  redis::Topology topology = redis::Topology::kStandalone;
  std::size_t primaries = 1;
  bool replicas = false;
  bool reads_replicas = false;
  std::size_t connections = 1;
  std::size_t workers = 1;
  std::size_t batches = 3;
  std::size_t items_max = 4;
  std::size_t value_bytes_max = 256;
  std::size_t window_bytes = 0;
  std::size_t drain_bytes_max = 1 << 20;
  bool striped = false;
  Pieces pieces = Pieces::kWhole;
  bool fine = false;             // workers interleave inside of a round of their loops
  bool low_water = false;        // receive low-water marks are honoured
  bool credentials = false;      // a provider, whose tokens expire
  bool resp2 = false;            // servers that do not know HELLO
  bool pushes = false;           // RESP3 pushes and attributes between replies
  std::size_t troubles = 0;      // of servers and network
  std::size_t migrations = 0;    // of slots
  bool short_deadlines = false;  // some batches have one of a few milliseconds
  bool cancels = false;
  bool closes_early = false;  // close() with work in flight
};

[[nodiscard]] Plan draw_plan(Random& random) noexcept;
[[nodiscard]] redis::Config config_of(const Plan& plan);

}  // namespace kvferry::sim
