#include "node/session.hpp"

#include <gtest/gtest.h>

#include <string>

#include "node/glob.hpp"
#include "node/pace.hpp"
#include "node/test_store.hpp"

namespace kvferry::node {
namespace {

TEST(Session, ValuesComeBackHoweverTheBytesAreCut) {
  const std::string value(3 * kTestPage + 17, 'v');
  const std::string input = TestSession::encoded({"SET", "k", value, "PX", "5000"}) +
                            TestSession::encoded({"GET", "k"}) +
                            TestSession::encoded({"PTTL", "k"});
  const std::string wanted =
      "+OK\r\n$" + std::to_string(value.size()) + "\r\n" + value + "\r\n:5000\r\n";
  for (const std::size_t step : {1u, 13u, 511u, 100'000u}) {
    TestNode node;
    TestSession session(node);
    session.send(input, step);
    EXPECT_EQ(session.take(step), wanted) << step;
    EXPECT_EQ(node.in_flight.bytes(), 0u);
  }
}

TEST(Session, LargeValuesLandInTheirPagesAndAreSentFromThem) {
  TestNode node;
  TestSession session(node);
  session.send("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$10000\r\n");
  std::vector<std::byte> scratch(100);
  iovec pieces[8];
  EXPECT_EQ(session.session.plan(pieces, scratch), 2u);  // a piece in pages, and scratch behind it
  EXPECT_EQ(pieces[0].iov_len, 10'000u);
  void* const landed = pieces[0].iov_base;
  std::memset(landed, 'x', 10'000);
  std::memcpy(scratch.data(), "\r\n", 2);
  session.session.received(10'002, node.now);
  EXPECT_EQ(session.take(), "+OK\r\n");
  session.send("GET k\r\n");
  ASSERT_EQ(session.session.gather(pieces), 3u);
  EXPECT_EQ(pieces[1].iov_base, landed);
}

TEST(Session, AnswersAsValkeyDoes) {
  TestNode node;
  TestSession session(node);
  EXPECT_EQ(session.command({"FOO", "a", "b"}),
            "-ERR unknown command 'FOO', with args beginning with: 'a' 'b' \r\n");
  EXPECT_EQ(session.command({"get"}), "-ERR wrong number of arguments for 'get' command\r\n");
  EXPECT_EQ(session.command({"SET", "k", "v", "EX"}), "-ERR syntax error\r\n");
  EXPECT_EQ(session.command({"SET", "k", "v", "EX", "0"}),
            "-ERR invalid expire time in 'set' command\r\n");
  EXPECT_EQ(session.command({"SET", "k", "v", "PX", "x"}),
            "-ERR value is not an integer or out of range\r\n");
  EXPECT_EQ(session.command({"GET", "k"}), "$-1\r\n");
  EXPECT_EQ(session.command({"SET", "k", "v", "NX"}), "+OK\r\n");
  EXPECT_EQ(session.command({"SET", "k", "w", "NX"}), "$-1\r\n");
  EXPECT_EQ(session.command({"STRLEN", "k"}), ":1\r\n");
  EXPECT_EQ(session.command({"TYPE", "k"}), "+string\r\n");
  EXPECT_EQ(session.command({"TTL", "k"}), ":-1\r\n");
  EXPECT_EQ(session.command({"SET", "k", "v", "EX", "100"}), "+OK\r\n");
  EXPECT_EQ(session.command({"TTL", "k"}), ":100\r\n");
  EXPECT_EQ(session.command({"EXISTS", "k", "k", "none"}), ":2\r\n");
  EXPECT_EQ(session.command({"SCAN", "0", "MATCH", "k*"}), "*2\r\n$1\r\n0\r\n*1\r\n$1\r\nk\r\n");
  EXPECT_EQ(session.command({"DEL", "k", "k"}), ":1\r\n");
  EXPECT_EQ(session.command({"TTL", "k"}), ":-2\r\n");
  EXPECT_EQ(session.command({"SELECT", "1"}), "-ERR DB index is out of range\r\n");
  EXPECT_EQ(session.command({"CLIENT", "FOO"}),
            "-ERR unknown subcommand 'FOO'. Try CLIENT HELP.\r\n");
  EXPECT_EQ(session.command({"HELLO", "4"}), "-NOPROTO unsupported protocol version\r\n");
  EXPECT_EQ(session.command({"HELLO", "3"}).substr(0, 4), "%7\r\n");
  EXPECT_EQ(session.command({"GET", "k"}), "_\r\n");
  EXPECT_EQ(session.command({"HELLO", "2"}).substr(0, 5), "*14\r\n");
  EXPECT_EQ(session.command({"GET", "k"}), "$-1\r\n");
}

TEST(Session, CommandsThatNoClientOfACacheNeedsAreUnknown) {
  TestNode node;
  TestSession session(node);
  for (const std::string word : {"COMMAND", "ECHO", "EXPIRE", "FUNCTION", "KEYS", "MEMORY",
                                 "PERSIST", "PEXPIRE", "QUIT", "RESET"}) {
    EXPECT_EQ(session.command({word, "k"}),
              "-ERR unknown command '" + word + "', with args beginning with: 'k' \r\n");
  }
  EXPECT_EQ(session.command({"CONFIG", "SET", "maxclients", "9"}),
            "-ERR unknown subcommand 'SET'. Try CONFIG HELP.\r\n");
  for (const std::string word : {"GETNAME", "SETINFO"}) {
    EXPECT_EQ(session.command({"CLIENT", word}),
              "-ERR unknown subcommand '" + word + "'. Try CLIENT HELP.\r\n");
  }
  EXPECT_EQ(session.command({"CLIENT", "KILL", "TYPE", "normal"}), "-ERR syntax error\r\n");
  EXPECT_EQ(session.command({"CLIENT", "LIST", "TYPE", "normal"}),
            "-ERR wrong number of arguments for 'client|list' command\r\n");
  EXPECT_EQ(session.command({"SET", "k", "v", "KEEPTTL"}), "-ERR syntax error\r\n");
  EXPECT_EQ(session.command({"SCAN", "0", "TYPE", "string"}), "-ERR syntax error\r\n");
}

TEST(Session, ProtocolErrorEndsTheConnectionAfterItsAnswer) {
  TestNode node;
  TestSession session(node);
  EXPECT_EQ(session.ask("*1\r\nfoo\r\nPING\r\n"), "-ERR Protocol error: expected '$', got 'f'\r\n");
  EXPECT_TRUE(session.session.finished());
}

TEST(Session, UsersReadAndWriteTheirPrefixesOnly) {
  TestNode node(
      64, {{.name = "default", .password = "secret", .read = {""}, .write = {""}, .admin = true},
           {.name = "bob", .password = "pw", .read = {"a:", "b:"}, .write = {"b:"}}});
  TestSession session(node);
  EXPECT_EQ(session.command({"GET", "a:1"}), "-NOAUTH Authentication required.\r\n");
  EXPECT_EQ(session.command({"SET", "a:1", "x"}), "-NOAUTH Authentication required.\r\n");
  EXPECT_EQ(session.command({"AUTH", "wrong"}),
            "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
  EXPECT_EQ(session.command({"AUTH", "secret"}), "+OK\r\n");
  EXPECT_EQ(session.command({"SET", "a:1", "x"}), "+OK\r\n");
  EXPECT_EQ(session.command({"SET", "c:1", "x"}), "+OK\r\n");
  EXPECT_EQ(session.command({"AUTH", "bob", "pw"}), "+OK\r\n");
  EXPECT_EQ(session.command({"GET", "a:1"}), "$1\r\nx\r\n");
  EXPECT_EQ(session.command({"SET", "a:1", std::string(9000, 'y')}),
            "-NOPERM No permissions to access a key\r\n");
  EXPECT_EQ(session.command({"SET", "b:1", "y"}), "+OK\r\n");
  EXPECT_EQ(session.command({"GET", "c:1"}), "-NOPERM No permissions to access a key\r\n");
  EXPECT_EQ(session.command({"EXISTS", "a:1", "c:1"}),
            "-NOPERM No permissions to access a key\r\n");
  EXPECT_EQ(session.command({"SCAN", "0"}).substr(0, 15), "*2\r\n$1\r\n0\r\n*2\r\n");
  EXPECT_EQ(session.command({"FLUSHALL"}),
            "-NOPERM User bob has no permissions to run the 'flushall' command\r\n");
  EXPECT_EQ(session.command({"CONFIG", "GET", "save"}), "*2\r\n$4\r\nsave\r\n$0\r\n\r\n");
  EXPECT_EQ(session.command({"CLIENT", "LIST"}),
            "-NOPERM User bob has no permissions to run the 'client|list' command\r\n");
  EXPECT_EQ(session.command({"CLIENT", "KILL", "ID", "1"}),
            "-NOPERM User bob has no permissions to run the 'client|kill' command\r\n");
  EXPECT_EQ(stored(*node.store, "a:1", node.now), "x");
}

TEST(Session, WhoComesOverAUnixSocketIsKnownThereAndNobodyElseIs) {
  TestNode node(64, {{.name = "peer", .password = "x", .read = {"kvf:"}, .on_unix = true}});
  TestSession near(node, true);
  EXPECT_EQ(near.command({"GET", "kvf:1"}), "$-1\r\n");
  EXPECT_EQ(near.command({"HELLO", "3"}).substr(0, 4), "%7\r\n");
  EXPECT_EQ(near.command({"GET", "kvf:1"}), "_\r\n");
  TestSession far(node);
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"GET", "kvf:1"},
                                             {"DBSIZE"},
                                             {"LEASE", "AGENT"},
                                             {"INFO"},
                                             {"HELLO", "3"},
                                             {"AUTH", "peer", "y"},
                                             {"HELLO", "3", "AUTH", "peer", "y"}}) {
    const std::string said = far.command(words);
    EXPECT_EQ(said.substr(0, 8), "-NOAUTH ") << said;
    EXPECT_NE(said.find("p2p_secret_file"), std::string::npos) << said;
  }
}

TEST(Session, RequestsOfABrowserEndTheConnectionBeforeTheirBody) {
  for (const std::string method : {"POST", "post", "PUT", "GET", "OPTIONS"}) {
    TestNode node;
    TestSession session(node);
    session.ask(method + " / HTTP/1.1\r\nHost: 127.0.0.1:6400\r\n\r\nSET k v\r\n");
    EXPECT_TRUE(session.session.finished()) << method;
    EXPECT_EQ(stored(*node.store, "k"), "(none)") << method;
  }
}

TEST(Session, NothingIsAnsweredToWhoDoesNotReadAndHisPagesComeBack) {
  SessionLimits limits;
  limits.unread_bytes_max = 3 * kTestPage;
  TestNode node(16, {}, limits);
  put(*node.store, "k", std::string(2 * kTestPage, 'v'), node.now);
  {
    TestSession session(node);
    std::string many;
    for (int i = 0; i < 100; ++i) many += "GET k\r\n";
    session.send(many);
    EXPECT_FALSE(session.session.wants_bytes());
    EXPECT_LT(session.session.unsent_bytes(), 6 * kTestPage);
    node.store->remove("k", node.now);
    EXPECT_EQ(node.store->usage().used_bytes, 2 * kTestPage);  // held for him
  }
  EXPECT_EQ(node.store->usage().used_bytes, 0u);
  EXPECT_EQ(node.in_flight.bytes(), 0u);
}

TEST(Session, PipelineGoesOnWhenTheReaderReads) {
  SessionLimits limits;
  limits.unread_bytes_max = 1000;
  TestNode node(16, {}, limits);
  put(*node.store, "k", std::string(5000, 'v'), node.now);
  TestSession session(node);
  std::string many;
  for (int i = 0; i < 50; ++i) many += "GET k\r\n";
  session.send(many);
  EXPECT_EQ(session.take(777).size() + session.unread.size(), 50u * (7 + 5000 + 2));
}

TEST(Session, InACrowdEverybodySendsOneValueAtATime) {
  TestNode node(16, {}, {}, 3 * kTestPage);
  constexpr std::size_t kAnswer = 2 * kTestPage + 9;
  put(*node.store, "k", std::string(2 * kTestPage, 'v'), node.now);
  TestSession one(node), two(node);
  one.send("GET k\r\nGET k\r\n");
  EXPECT_EQ(one.session.unsent_bytes(), 2 * kAnswer);
  two.send("GET k\r\nGET k\r\nGET none\r\n");
  EXPECT_EQ(two.session.unsent_bytes(), kAnswer);
  EXPECT_EQ(two.take().size(), 2 * kAnswer + 5);  // the first, and then what waited
  EXPECT_EQ(two.command({"SET", "l", std::string(2 * kTestPage, 'w')}), "+OK\r\n");
  EXPECT_EQ(one.take().size(), 2 * kAnswer);
  EXPECT_EQ(node.counters.busy.load(), 0u);
  EXPECT_EQ(node.in_flight.bytes(), 0u);
}

TEST(Session, AValueTakesPagesAsItArrivesAndKeepsNobodyFromWriting) {
  TestNode node(256, {}, {}, 200 * kTestPage);
  TestSession slow(node), other(node);
  slow.send("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$" + std::to_string(190 * kTestPage) + "\r\n");
  EXPECT_EQ(node.in_flight.bytes(), 0u);
  EXPECT_EQ(node.store->usage().used_bytes, 0u);
  slow.send(std::string(40 * kTestPage, 'h'));
  EXPECT_LE(node.store->usage().used_bytes, 81 * kTestPage);
  EXPECT_LE(slow.session.held_page_bytes(), 80 * kTestPage);
  EXPECT_EQ(other.command({"SET", "l", std::string(100 * kTestPage, 'w')}), "+OK\r\n");
  slow.send(std::string(150 * kTestPage, 'h') + "\r\n");
  EXPECT_EQ(slow.take(), "+OK\r\n");
  EXPECT_EQ(stored(*node.store, "k", node.now), std::string(190 * kTestPage, 'h'));
  EXPECT_EQ(node.in_flight.bytes(), 0u);
}

TEST(Session, TextsThatWaitAreFewAndWhatACommandTookComesBack) {
  SessionLimits limits;
  limits.unread_text_bytes_max = 10'000;
  TestNode node(16, {}, limits);
  TestSession session(node);
  std::string many;
  for (int i = 0; i < 200; ++i) many += "INFO\r\n";
  session.send(many);
  EXPECT_FALSE(session.session.wants_bytes());
  EXPECT_LT(session.session.unsent_bytes(), 20'000u);
  EXPECT_GE(session.session.held_bytes(), session.session.unsent_bytes());
  std::vector<std::string> words{"EXISTS"};
  for (int i = 0; i < 10'000; ++i)
    words.push_back("key " + std::to_string(i) + std::string(90, 'k'));
  const std::string command = TestSession::encoded(words);
  TestSession other(node);
  other.send(std::string_view(command).substr(0, command.size() - 1));
  EXPECT_GT(other.session.held_bytes(), 1'000'000u);
  EXPECT_EQ(other.ask("\n"), ":0\r\n");
  EXPECT_LT(other.session.held_bytes(), 100'000u);
  words[0] = "LEASE";
  EXPECT_EQ(other.command(words), "-ERR too many keys for one lease\r\n");
}

TEST(Session, AnAnswerToScanIsShortAndGoesOn) {
  SessionLimits limits;
  limits.scanned_bytes_max = 1000;
  TestNode node(3000, {}, limits);
  for (int i = 0; i < 2500; ++i) put(*node.store, "key " + std::to_string(i), "v", node.now);
  TestSession session(node);
  std::string cursor = "0";
  std::size_t keys = 0, rounds = 0;
  do {
    const std::string answer = session.command({"SCAN", cursor, "COUNT", "100000"});
    EXPECT_LT(answer.size(), 20'000u);
    const std::size_t at = answer.find('\n', 4) + 1;
    cursor = answer.substr(at, answer.find('\r', at) - at);
    for (std::size_t i = answer.find("key "); i < answer.size(); i = answer.find("key ", i + 1))
      ++keys;
    ++rounds;
  } while (cursor != "0");
  EXPECT_EQ(keys, 2500u);
  EXPECT_EQ(rounds, 3u);
}

// What is typed in as a line, and as an array of bulks: the same answers, all of them at once.
TEST(Session, ValuesWithoutRoomAreRefusedInBothForms) {
  constexpr std::size_t kInFlight = 4 * kTestPage;
  SessionLimits limits;
  limits.request.value_bytes_max = 6 * kTestPage;
  TestNode node(3, {}, limits, kInFlight);
  put(*node.store, "k", std::string(2 * kTestPage, 'v'), node.now);
  TestSession reader(node);
  const auto answers = [&](std::size_t pages) {
    TestSession array(node), line(node);
    const std::string value(pages * kTestPage, 'w');
    const std::string answer = array.command({"SET", "l", value});
    EXPECT_EQ(line.ask("SET l " + value + "\r\n"), answer);
    EXPECT_EQ(line.session.finished(), array.session.finished());
    EXPECT_EQ(stored(*node.store, "l", node.now), "(none)");
    return answer;
  };
  EXPECT_EQ(answers(4), "-ERR a value larger than the node\r\n");
  EXPECT_EQ(node.counters.busy.load(), 0u);
  EXPECT_EQ(answers(7), "-ERR Protocol error: invalid bulk length\r\n");
  reader.send("GET k\r\n");
  EXPECT_EQ(answers(2), "-BUSY all pages are in use\r\n");
  EXPECT_EQ(answers(3), "-BUSY all pages are in use\r\n");  // what is read has a limit of its own
  EXPECT_EQ(node.counters.busy.load(), 4u);
  EXPECT_EQ(reader.take().size(), 2 * kTestPage + 9);
  EXPECT_EQ(node.in_flight.bytes(), 0u);
  EXPECT_EQ(reader.ask("SET l " + std::string(3 * kTestPage, 'w') + "\r\n"), "+OK\r\n");
  EXPECT_EQ(node.in_flight.bytes(), 0u);
}

TEST(Session, HalfAValueIsNeverSeenAndItsPagesComeBack) {
  TestNode node(16);
  TestSession reader(node);
  {
    TestSession writer(node);
    writer.send("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$9000\r\n" + std::string(5000, 'h'));
    EXPECT_EQ(reader.command({"GET", "k"}), "$-1\r\n");
    EXPECT_EQ(node.store->usage().used_bytes, 3 * kTestPage);
  }
  EXPECT_EQ(reader.command({"GET", "k"}), "$-1\r\n");
  EXPECT_EQ(node.store->usage().used_bytes, 0u);
}

TEST(Session, TrackersHearOfEveryChangeUnderTheirPrefix) {
  TestNode node(4);
  TestSession tracker(node), writer(node);
  const auto news = [&] {
    tracker.session.deliver();
    return tracker.take();
  };
  EXPECT_EQ(tracker.command({"CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "a:"}).substr(0, 5),
            "-ERR ");  // RESP2
  tracker.command({"HELLO", "3"});
  EXPECT_EQ(tracker.command({"CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "a:"}), "+OK\r\n");
  EXPECT_EQ(node.clients.tracking_count(), 1u);
  writer.command({"SET", "a:1", "x"});
  writer.command({"SET", "b:1", "x"});
  EXPECT_EQ(news(), ">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\na:1\r\n");
  writer.command({"DEL", "a:1"});
  EXPECT_EQ(news(), ">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\na:1\r\n");
  writer.command({"SET", "a:2", "x"});
  news();
  writer.command({"SET", "b:2", std::string(4 * kTestPage, 'x')});  // evicts all
  EXPECT_EQ(news(), ">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\na:2\r\n");
  writer.command({"SET", "a:3", "x", "PX", "10"});
  news();
  node.now += 20;
  writer.command({"GET", "a:3"});
  EXPECT_EQ(news(), ">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\na:3\r\n");
  writer.command({"FLUSHALL"});
  EXPECT_EQ(news(), ">2\r\n$10\r\ninvalidate\r\n_\r\n");
  EXPECT_EQ(tracker.command({"CLIENT", "TRACKING", "OFF"}), "+OK\r\n");
  writer.command({"SET", "a:4", "x"});
  EXPECT_EQ(news(), "");
  EXPECT_EQ(
      tracker.command({"CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", std::string(4097, 'a')}),
      "-ERR a prefix is longer than any key\r\n");
}

TEST(Session, TrackerThatTakesNoNewsLosesHisConnection) {
  SessionLimits limits;
  limits.announced_bytes_max = 1000;
  TestNode node(8, {}, limits);
  TestSession tracker(node), writer(node);
  tracker.command({"HELLO", "3"});
  tracker.command({"CLIENT", "TRACKING", "ON", "BCAST"});
  for (int i = 0; i < 50; ++i) writer.command({"SET", "k", "x"});
  tracker.session.deliver();
  EXPECT_TRUE(tracker.session.finished());
}

TEST(Session, ATrackerMayBeSentAValueLongerThanItsAnnouncements) {
  SessionLimits limits;
  limits.unread_bytes_max = 1000;
  limits.announced_bytes_max = 1000;
  TestNode node(8, {}, limits);
  put(*node.store, "k", std::string(3 * kTestPage, 'v'), node.now);
  TestSession tracker(node), writer(node);
  tracker.command({"HELLO", "3"});
  tracker.command({"CLIENT", "TRACKING", "ON", "BCAST"});
  tracker.send("GET k\r\n");
  writer.command({"SET", "l", "x"});
  tracker.session.deliver();
  EXPECT_FALSE(tracker.session.finished());
  const std::string got = tracker.take();
  EXPECT_EQ(got.substr(got.size() - 11), "*1\r\n$1\r\nl\r\n");
}

TEST(Session, OthersAreListedAndKilled) {
  TestNode node;
  TestSession one(node), two(node);
  two.command({"CLIENT", "SETNAME", "two"});
  EXPECT_NE(one.command({"CLIENT", "LIST"}).find("name=two"), std::string::npos);
  EXPECT_EQ(one.command({"CLIENT", "KILL", "ID", "x"}),
            "-ERR client-id should be greater than 0\r\n");
  EXPECT_EQ(one.command({"CLIENT", "KILL", "ID", std::to_string(one.id)}), ":0\r\n");
  EXPECT_EQ(one.command({"CLIENT", "KILL", "ID", "99"}), ":0\r\n");
  EXPECT_EQ(one.command({"CLIENT", "KILL", "ID", std::to_string(two.id)}), ":1\r\n");
  two.session.deliver();
  EXPECT_TRUE(two.session.finished());
}

TEST(Session, NamesAreWordsAndShort) {
  TestNode node;
  TestSession session(node);
  const std::string kWords = " cannot contain spaces, newlines or special characters.\r\n";
  const std::string kShort = " cannot be longer than 256 bytes.\r\n";
  const std::string longest(256, 'n'), longer(257, 'n');
  for (const char* const bad : {"a b", "a\nb", "a\rb", "\x7f", "\xc3\xa4"}) {
    EXPECT_EQ(session.command({"CLIENT", "SETNAME", bad}), "-ERR Client names" + kWords);
    EXPECT_EQ(session.command({"HELLO", "2", "SETNAME", bad}), "-ERR Client names" + kWords);
  }
  EXPECT_EQ(session.command({"CLIENT", "SETNAME", longer}), "-ERR Client names" + kShort);
  EXPECT_EQ(session.command({"HELLO", "2", "SETNAME", longer}), "-ERR Client names" + kShort);
  const auto named = [&](const std::string& name) {
    return session.command({"CLIENT", "INFO"}).find(" name=" + name + " ") != std::string::npos;
  };
  EXPECT_TRUE(named(""));
  EXPECT_EQ(session.command({"CLIENT", "SETNAME", longest}), "+OK\r\n");
  EXPECT_TRUE(named(longest));
  EXPECT_EQ(session.command({"CLIENT", "SETNAME", ""}), "+OK\r\n");
  EXPECT_TRUE(named(""));
}

TEST(Session, AnotherUserIsToldOfNoKeyThatHeMayNotRead) {
  TestNode node(64,
                {{.name = "default", .password = {}, .read = {""}, .write = {""}, .admin = true},
                 {.name = "bob", .password = "pw", .read = {"a:"}}});
  const std::string kAll = ">2\r\n$10\r\ninvalidate\r\n_\r\n";
  TestSession tracker(node), writer(node);
  const auto news = [&] {
    tracker.session.deliver();
    return tracker.take();
  };
  tracker.command({"HELLO", "3"});
  tracker.command({"CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "a:", "PREFIX", "b:"});
  writer.command({"SET", "b:1", "x"});  // waits for the tracker
  EXPECT_EQ(tracker.command({"AUTH", "bob", "wrong"}).substr(0, 10), "-WRONGPASS");
  EXPECT_EQ(tracker.command({"AUTH", "bob", "pw"}), kAll + "+OK\r\n");
  EXPECT_EQ(news(), "");
  writer.command({"SET", "b:2", "x"});
  EXPECT_EQ(news(), "");
  writer.command({"SET", "a:1", "x"});
  EXPECT_EQ(news(), ">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\na:1\r\n");
  EXPECT_EQ(tracker.command({"AUTH", "default", ""}), "+OK\r\n");
  EXPECT_EQ(node.clients.tracking_count(), 1u);  // as Valkey
  tracker.command({"CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "b:"});
  EXPECT_EQ(tracker.command({"HELLO", "3", "AUTH", "bob", "pw"}).substr(0, kAll.size()), kAll);
  EXPECT_EQ(node.clients.tracking_count(), 0u);
}

TEST(Session, TheOtherProtocolEndsTracking) {
  TestNode node;
  TestSession tracker(node), writer(node);
  tracker.command({"HELLO", "3"});
  tracker.command({"CLIENT", "TRACKING", "ON", "BCAST"});
  tracker.command({"HELLO", "2"});
  EXPECT_EQ(node.clients.tracking_count(), 0u);
  tracker.command({"HELLO", "3"});
  writer.command({"SET", "k", "x"});
  tracker.session.deliver();
  EXPECT_EQ(tracker.take(), "");
}

TEST(Session, PatternsThatWouldTakeLongAreRefused) {
  TestNode node;
  TestSession session(node);
  const std::string pattern(1025, '*');
  EXPECT_EQ(session.command({"SCAN", "0", "MATCH", pattern}).substr(0, 16), "-ERR the pattern");
}

TEST(Glob, MatchesAsValkeyDoes) {
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("a*c*e", "abcde"));
  EXPECT_FALSE(glob_match("a*c*e", "abcd"));
  EXPECT_TRUE(glob_match("h[a-c^]llo", "hbllo"));
  EXPECT_TRUE(glob_match("h[^x]llo", "hello"));
  EXPECT_FALSE(glob_match("h[^e]llo", "hello"));
  EXPECT_TRUE(glob_match("a\\*b", "a*b"));
  EXPECT_FALSE(glob_match("a\\*b", "axb"));
  EXPECT_TRUE(glob_match("?", "x"));
  EXPECT_FALSE(glob_match("?", ""));
  EXPECT_FALSE(glob_match(std::string(50, '*') + "b", std::string(10'000, 'a')));  // in no time
}

TEST(Pace, SlowIsWhoMovesTooLittleInAWholeWindow) {
  const PaceLimits limits{.window = 10, .window_bytes_min = 100};
  Pace pace;
  EXPECT_FALSE(pace.too_slow(limits, true, 0));
  pace.moved(100);
  EXPECT_FALSE(pace.too_slow(limits, true, 10));
  pace.moved(99);
  EXPECT_FALSE(pace.too_slow(limits, true, 19));
  EXPECT_TRUE(pace.too_slow(limits, true, 20));
  EXPECT_FALSE(pace.too_slow(limits, false, 30));  // nothing was due
  EXPECT_FALSE(pace.too_slow(limits, true, 100));
  pace.done();  // in between all was sent
  EXPECT_FALSE(pace.too_slow(limits, true, 115));
}

TEST(Pace, WhoHasMuchToMoveMovesMore) {
  const PaceLimits limits{.window = 10, .window_bytes_min = 100, .windows_max = 10};
  Pace pace;
  EXPECT_FALSE(pace.too_slow(limits, 50'000, 0));
  pace.moved(5'000);
  EXPECT_FALSE(pace.too_slow(limits, 50'000, 10));
  pace.moved(4'999);
  EXPECT_TRUE(pace.too_slow(limits, 50'000, 20));
}

}  // namespace
}  // namespace kvferry::node
