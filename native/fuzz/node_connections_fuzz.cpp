// Several connections of a node at once, by any script: whoever they say they are, none of them
// sees a key that is not his or what lay in a page before, limits hold, and all pages come back.
//
// Beside them a client of our own writes values and reads them again: it must get what it wrote
// last, or nothing where it was told that the key has changed.
//
// A script is what clients send. '~' and a character do something else:
//   0 1 2 3   what follows is sent on that connection; it is opened if it is not there
//   q         it reads replies from now on only when told to; again: always
//   rX        it reads up to 2^(X mod 16) bytes
//   x         it is closed
//   tX        2^(X mod 18) ms pass
//   wX        our client does operation X mod 4 with key X / 4 mod 4
//   f         somebody removes everything
//   ~         is sent
// One that begins with '!' meets a node where everybody has to say who he is first.
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fuzz/fuzz.hpp"
#include "node/session.hpp"
#include "node/value_store.hpp"

namespace {

using kvferry::fuzz::require;
namespace node = kvferry::node;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kPages = 8;
constexpr std::size_t kInFlightMax = 5 * kPage;
constexpr std::size_t kScripted = 4;  // connections of a script
constexpr std::size_t kClientsMax = 6;
constexpr std::size_t kUnreadMax = 16 * 1024;  // several values: only a crowd keeps it to one
constexpr std::size_t kAnnouncedMax = 4096;
constexpr std::size_t kReplyMax = 256 * 1024;  // of what one command can answer here
constexpr std::size_t kInputMax = 16 * 1024;
constexpr std::size_t kKeys = 4;         // of our client
constexpr std::size_t kSecretPages = 2;  // of the value that is held from the beginning
constexpr node::UnixMs kLeaseMs = 100;

// Bytes that nobody but who may read them is to see. They are looked for by a product, so that the
// fuzzer, which sees what is compared, does not learn them there. It learns them where the node
// compares prefixes, and a script that sends them proves nothing.
using Mark = std::array<char, 8>;
constexpr Mark kSecret{'\x9d', '\x07', 'S', '\xe1', '\x83', 'q', '\xf4', '\x1c'};
constexpr Mark kOurs{'\x8b', '\x15', 'O', '\xc7', '\x92', 'z', '\xe8', '\x03'};

std::uint64_t number_of(const char* bytes) noexcept {
  std::uint64_t number = 0;
  std::memcpy(&number, bytes, sizeof number);
  return number * 0x9e3779b97f4a7c15u;
}
const std::uint64_t kSecretNumber = number_of(kSecret.data());
const std::uint64_t kOursNumber = number_of(kOurs.data());

// Whether one of the marks is in the bytes that come after others, of which `last` keeps the end.
bool has_mark(std::string& last, std::string_view bytes, bool secret, bool ours) {
  last += bytes;
  bool found = false;
  for (std::size_t at = 0; at + sizeof(Mark) <= last.size(); ++at) {
    const std::uint64_t number = number_of(last.data() + at);
    found |= (secret && number == kSecretNumber) || (ours && number == kOursNumber);
  }
  last.erase(0, last.size() - std::min(last.size(), sizeof(Mark) - 1));
  return found;
}

// What a value takes of the store: whole pages, one at least.
std::size_t pages_bytes(const node::StoredValue& value) {
  return std::max<std::size_t>((value.size_bytes() + kPage - 1) / kPage, 1) * kPage;
}

std::string text_of(const Mark& mark) { return {mark.data(), mark.size()}; }
std::string repeated(const std::string& text, std::size_t size) {
  std::string out;
  while (out.size() < size) out += text;
  out.resize(size);
  return out;
}

const node::Access& access_of(bool strict) {
  const auto made = [](std::optional<std::string> everybody) {
    const std::string ours = "w:" + text_of(kOurs);
    return *node::Access::create(
        {{.name = "default", .password = std::move(everybody), .read = {"a"}, .write = {"a"}},
         {.name = "b", .password = "b", .read = {"a", "b"}, .write = {"b"}},
         {.name = "root", .password = "r", .read = {"a", "b"}, .write = {"a", "b"}, .admin = true},
         {.name = "nobody", .password = std::nullopt},
         {.name = "owner", .password = text_of(kSecret) + "owner", .read = {"s"}},
         {.name = "ours", .password = text_of(kOurs) + "ours", .read = {ours}, .write = {ours}}});
  };
  static const node::Access open = made(std::nullopt), closed = made("d");
  return strict ? closed : open;
}

// The node.
struct Rig {
  explicit Rig(bool strict) : access(access_of(strict)), store(store_of(clients)) {
    agent.set(7, "agent");
    put("left behind", kPages * kPage);
    store->clear();
    put("s:" + text_of(kSecret), 100);
    put("s", kPage + 100);  // kSecretPages
    secret = store->hold("s", now);
  }

  static node::SessionLimits limits() {
    node::SessionLimits limits;
    limits.request = {.value_bytes_max = 64 * 1024, .text_bytes_max = 8 * 1024};
    limits.unread_bytes_max = kUnreadMax;
    limits.announced_bytes_max = kAnnouncedMax;
    limits.lease = {.count_max = 2, .bytes_max = 3 * kPage, .time_ms_max = kLeaseMs};
    return limits;
  }
  static std::unique_ptr<node::ValueStore> store_of(node::Clients& clients) {
    return std::move(*node::ValueStore::create({.size_bytes = kPages * kPage,
                                                .page_size_bytes = kPage,
                                                .policy = "LRU",
                                                .arena = {.hugetlb = false, .prefault = false}},
                                               &clients));
  }

  void put(const std::string& key, std::size_t size) {
    auto value = store->reserve(size);
    const std::string text = repeated(text_of(kSecret), size);
    for (std::size_t offset = 0; offset < size;) {
      const auto piece = (*value)->piece(offset);
      std::memcpy(piece.data(), text.data() + offset, piece.size());
      offset += piece.size();
    }
    store->commit(key, std::move(*value), {}, now);
  }

  void check() const {
    require(store->usage().used_bytes <= kPages * kPage, "more pages than there are");
    // What moves lies in pages that the secret leaves. Besides, the same bytes may leave more than
    // once: less than the limit before a crowd begins, and from then on one value for each of the
    // other connections. A value comes with the script. Our client reads at once.
    constexpr std::size_t kMax =
        (kPages - kSecretPages) * kPage + kInFlightMax + (kScripted - 1) * kInputMax;
    require(in_flight.bytes() <= kMax, "too much is in flight", std::to_string(in_flight.bytes()));
    require(secret.use_count() <= 2, "somebody holds what he may not read");
  }

  node::UnixMs now = 1'000'000;
  const node::Access& access;
  node::Clients clients{kClientsMax, kAnnouncedMax, SIZE_MAX};
  node::Counters counters;
  node::Agent agent;
  node::InFlight in_flight{kInFlightMax};
  std::unique_ptr<node::ValueStore> store;
  bool given_away = false;  // the script has the marks
  node::ValuePtr secret;    // so that its pages are nobody else's
  node::Context context{*store, access, clients, in_flight, counters, agent, limits(), {}};
};

// One connection as a worker drives it, with a socket that holds back what is not taken.
class Connection {
 public:
  static std::unique_ptr<Connection> open(Rig& rig, bool ours = false) {
    const auto id = rig.clients.add("fuzz:1", rig.now, nullptr);
    return id ? std::unique_ptr<Connection>(new Connection(rig, *id, ours)) : nullptr;
  }
  ~Connection() { rig_.clients.remove(id_); }

  void send(std::string_view bytes) {
    rig_.given_away |= !ours_ && has_mark(last_sent_, bytes, true, true);
    input_ += bytes;
  }
  void deliver() { session_.deliver(); }
  void expire_leases() { session_.expire_leases(rig_.now); }
  [[nodiscard]] bool over() const { return session_.finished(); }
  [[nodiscard]] bool mid_request() const { return session_.mid_request() || !input_.empty(); }
  bool reads_always = true;

  // Takes what it can; false: nothing.
  bool take(kvferry::fuzz::Pieces& pieces) {
    if (input_.empty() || over() || !session_.wants_bytes()) return false;
    iovec parts[3];
    const std::size_t count = session_.plan(parts, scratch_);
    std::size_t moved = 0, allowed = std::min(pieces.next(), input_.size());
    for (std::size_t i = 0; i < count && allowed > 0; ++i) {
      const std::size_t part = std::min(parts[i].iov_len, allowed);
      std::memcpy(parts[i].iov_base, input_.data() + moved, part);
      moved += part;
      allowed -= part;
    }
    input_.erase(0, moved);
    session_.received(moved, rig_.now);
    while (session_.has_more()) session_.resume(rig_.now);
    require(session_.unsent_bytes() <= kUnreadMax + kAnnouncedMax + kReplyMax, "too much waits");
    rig_.check();
    return true;
  }

  std::string read(std::size_t bytes_max) {
    std::string got;
    while (session_.unsent_bytes() > 0 && got.size() < bytes_max) {
      iovec parts[3];
      const std::size_t count = session_.gather(parts);
      std::size_t moved = 0, allowed = bytes_max - got.size();
      for (std::size_t i = 0; i < count && allowed > 0; ++i) {
        const std::size_t part = std::min(parts[i].iov_len, allowed);
        got.append(static_cast<const char*>(parts[i].iov_base), part);
        moved += part;
        allowed -= part;
      }
      session_.sent(moved, rig_.now);
      while (session_.has_more()) session_.resume(rig_.now);
    }
    const bool seen = has_mark(last_, got, true, !ours_);
    require(!seen || rig_.given_away, "bytes that this client may not read, or that lay in a page");
    return got;
  }

 private:
  Connection(Rig& rig, std::uint64_t id, bool ours)
      : rig_(rig), id_(id), ours_(ours), session_(rig.context, id) {}

  Rig& rig_;
  const std::uint64_t id_;
  const bool ours_;
  node::Session session_;
  std::string input_, last_, last_sent_;
  std::array<std::byte, 256> scratch_;
};

// Our client, with what it must find.
class Ours {
 public:
  explicit Ours(Rig& rig) : rig_(rig) {}

  void close() { connection_.reset(); }

  void act(unsigned number) {
    if (connection_ == nullptr && !dial()) return;
    const std::size_t which = number / 4 % kKeys;
    Key& key = keys_[which];
    const std::string name = name_of(which);
    switch (number % 4) {
      case 0:
      case 1: {
        const bool timed = number % 4 == 1;
        const std::string value = content(which, ++version_);
        std::vector<std::string> words{"SET", name, value};
        if (timed) words.insert(words.end(), {"PX", "40"});
        const std::string answer = ask(words);
        require(answer == "+OK" || answer.starts_with("-BUSY "), "a SET that fails", answer);
        if (answer != "+OK") break;
        const std::string left = ask({"PTTL", name});
        require(left == (timed ? ":40" : ":-1") || left[0] == '-', "another time to live", left);
        key = {.content = value, .until = timed ? rig_.now + 40 : node::kForever, .there = true};
        break;
      }
      case 2: {
        const std::string answer = ask({"GET", name});
        if (answer.starts_with("-BUSY ")) break;
        const bool alive = key.content.has_value() && rig_.now < key.until;
        if (answer == "_") {
          require(!alive || !key.there, "a key is gone, and nobody said so", name);
        } else {
          require(alive, "a value that was deleted, or is over", name);
          require(answer == "$" + *key.content, "another value than was written", name);
        }
        break;
      }
      default:
        if (ask({"DEL", name}).starts_with(":")) key = {};
    }
  }

 private:
  struct Key {
    std::optional<std::string> content{};
    node::UnixMs until = 0;
    bool there = false;  // as far as it was told
  };

  static std::string name_of(std::size_t which) {
    return "w:" + text_of(kOurs) + static_cast<char>('0' + which);
  }
  // Short ones are copied, long ones are sent from their pages.
  static std::string content(std::size_t which, std::size_t version) {
    return repeated(text_of(kOurs) + std::to_string(which) + "." + std::to_string(version) + ";",
                    version * 1777 % (2 * kPage));
  }

  bool dial() {
    connection_ = Connection::open(rig_, true);
    for (Key& key : keys_) key.there = false;  // what changed meanwhile was told to nobody
    if (connection_ == nullptr) return false;
    const std::string password = text_of(kOurs) + "ours";
    require(ask({"HELLO", "3", "AUTH", "ours", password}).starts_with("%"), "no HELLO");
    const std::string prefix = "w:" + text_of(kOurs);
    return ask({"CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", prefix}) == "+OK";
  }

  // The answer, after what was announced before and with it. Bulks are '$' and their text.
  std::string ask(const std::vector<std::string>& words) {
    connection_->deliver();
    if (connection_->over()) {  // somebody ended it
      if (!dial()) return "-BUSY no connection";
    }
    std::string bytes = "*" + std::to_string(words.size()) + "\r\n";
    for (const std::string& word : words) {
      bytes += "$" + std::to_string(word.size()) + "\r\n" + word + "\r\n";
    }
    connection_->send(bytes);
    kvferry::fuzz::Pieces pieces(kvferry::fuzz::Cutting::kVaried, words[0]);
    std::string got;
    while (connection_->take(pieces)) got += connection_->read(SIZE_MAX);
    connection_->deliver();
    got += connection_->read(SIZE_MAX);
    std::string answer;
    for (std::string_view rest = got; !rest.empty();) {
      const std::string one = next(rest);
      if (one != ">") answer = one;
    }
    return answer;
  }

  // One reply from the front; ">" for an announcement, which is taken in.
  std::string next(std::string_view& rest) {
    const std::size_t end = rest.find("\r\n");
    require(end != std::string_view::npos, "half a reply");
    std::string line(rest.substr(0, end));
    rest.remove_prefix(end + 2);
    const auto size = [&] { return std::stoul(line.substr(1)); };
    if (line[0] == '$') {
      const std::size_t bytes = size();
      require(bytes + 2 <= rest.size(), "half a value");
      line = "$" + std::string(rest.substr(0, bytes));
      rest.remove_prefix(bytes + 2);
    } else if (line[0] == '>') {
      require(next(rest) == "$invalidate", "another announcement");
      if (rest.starts_with("_")) {
        for (Key& key : keys_) key.there = false;
      }
      heard_ = true;
      next(rest);
      heard_ = false;
      return ">";
    } else if (line[0] == '*' || line[0] == '%') {
      for (std::size_t left = size() * (line[0] == '%' ? 2 : 1); left > 0; --left) {
        const std::string one = next(rest);
        if (!heard_) continue;
        for (std::size_t which = 0; which < kKeys; ++which) {
          if (one == "$" + name_of(which)) keys_[which].there = false;
        }
      }
    }
    return line;
  }

  Rig& rig_;
  std::unique_ptr<Connection> connection_;
  std::array<Key, kKeys> keys_;
  std::size_t version_ = 0;
  bool heard_ = false;  // what is read is an announcement
};

class Script {
 public:
  Script(std::string_view input, bool strict)
      : rig_(strict), ours_(rig_), pieces_(kvferry::fuzz::Cutting::kVaried, input) {}

  void run(std::string_view input) {
    while (!input.empty()) {
      const std::size_t plain = std::min(input.find('~'), input.size());
      send(input.substr(0, plain));
      input.remove_prefix(plain);
      if (input.size() < 2) break;
      const char word = input[1];
      input.remove_prefix(2);
      const bool takes = word == 'r' || word == 't' || word == 'w';
      const auto number = static_cast<unsigned char>(takes && !input.empty() ? input[0] : '0');
      if (takes && !input.empty()) input.remove_prefix(1);
      act(word, number);
      move();
    }
    finish();
  }

 private:
  void act(char word, unsigned number) {
    std::unique_ptr<Connection>& connection = connections_[at_];
    if (word >= '0' && word <= '3') {
      at_ = static_cast<std::size_t>(word - '0');
      open();
    } else if (word == '~') {
      send("~");
    } else if (word == 't') {
      pass(node::UnixMs{1} << number % 18);
    } else if (word == 'w') {
      ours_.act(number - '0');
    } else if (word == 'f') {
      rig_.store->clear();
    } else if (connection != nullptr) {
      if (word == 'q') connection->reads_always = !connection->reads_always;
      if (word == 'r') (void)connection->read(std::size_t{1} << number % 16);
      if (word == 'x') connection.reset();
    }
  }

  void send(std::string_view bytes) {
    if (bytes.empty() || !open()) return;
    connections_[at_]->send(bytes);
    move();
  }

  // False: there are too many.
  bool open() {
    std::unique_ptr<Connection>& connection = connections_[at_];
    if (connection == nullptr) connection = Connection::open(rig_);
    return connection != nullptr;
  }

  // What a worker does when it is woken.
  void move() {
    for (std::unique_ptr<Connection>& connection : connections_) {
      if (connection == nullptr) continue;
      connection->deliver();
      do {
        if (connection->reads_always) (void)connection->read(SIZE_MAX);
      } while (connection->take(pieces_));
      if (connection->over()) connection.reset();
    }
    rig_.check();
  }

  void pass(node::UnixMs time_ms) {
    rig_.now += time_ms;
    for (const auto& connection : connections_) {
      if (connection != nullptr) connection->expire_leases();
    }
    rig_.store->sweep(rig_.now);
  }

  void finish() {
    std::size_t open = 0;
    bool idle = true;
    for (const auto& connection : connections_) {
      if (connection != nullptr) connection->reads_always = true;
    }
    move();
    pass(kLeaseMs);
    ours_.close();
    for (const auto& connection : connections_) {
      if (connection == nullptr) continue;
      ++open;
      idle = idle && !connection->mid_request();
    }
    require(rig_.clients.count() == open, "a client that is gone is still listed");
    if (idle) {
      require(rig_.in_flight.bytes() == 0, "bytes stay in flight of idle connections",
              std::to_string(rig_.in_flight.bytes()));
      std::size_t used = 0;
      bool secret = false;
      for (const auto& kept : rig_.store->all(rig_.now)) {
        used += pages_bytes(*kept.value);
        secret = secret || kept.value == rig_.secret;
      }
      if (!secret) used += pages_bytes(*rig_.secret);
      require(rig_.store->usage().used_bytes == used, "pages that no key has");
    }
    for (auto& connection : connections_) connection.reset();
    rig_.store->clear();
    rig_.secret.reset();
    require(rig_.store->usage().used_bytes == 0, "a page did not come back");
    require(rig_.in_flight.bytes() == 0, "bytes stay in flight");
    require(rig_.clients.count() == 0 && rig_.clients.tracking_count() == 0, "a client stays");
  }

  Rig rig_;
  Ours ours_;
  kvferry::fuzz::Pieces pieces_;
  std::array<std::unique_ptr<Connection>, kScripted> connections_;
  std::size_t at_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input = kvferry::fuzz::as_input(data, size);
  if (input.size() > kInputMax) return 0;
  const bool strict = input.starts_with('!');
  if (strict) input.remove_prefix(1);
  Script(input, strict).run(input);
  return 0;
}
