#include "cache/answers.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace kvferry::cache {
namespace {

ChunkHash numbered(std::uint64_t number) { return {number, 0}; }

TEST(Answers, AKeyIsNewOncePendingThenAnswered) {
  Answers answers;
  EXPECT_EQ(answers.ask(numbered(1)), Answer::kNew);
  EXPECT_EQ(answers.ask(numbered(1)), Answer::kPending);
  EXPECT_EQ(answers.ask(numbered(2)), Answer::kNew);
  EXPECT_EQ(answers.take(), (std::vector{numbered(1), numbered(2)}));
  EXPECT_TRUE(answers.take().empty());
  EXPECT_EQ(answers.ask(numbered(1)), Answer::kPending);
  answers.answer(numbered(1), true);
  answers.answer(numbered(2), false);
  EXPECT_EQ(answers.ask(numbered(1)), Answer::kYes);
  EXPECT_EQ(answers.ask(numbered(2)), Answer::kNo);
  EXPECT_TRUE(answers.take().empty());
}

TEST(Answers, WhatIsTakenBackWasNeverAsked) {
  Answers answers;
  for (std::uint64_t n = 0; n < 31; ++n) answers.ask(numbered(n));
  answers.ask(numbered(99));
  answers.take_back();
  EXPECT_EQ(answers.take().size(), 31u);
  for (std::uint64_t n = 0; n < 31; ++n) EXPECT_EQ(answers.ask(numbered(n)), Answer::kPending);
  EXPECT_EQ(answers.ask(numbered(99)), Answer::kNew);
}

TEST(Answers, WhatWasNotAskedForIsNotWrittenDown) {
  Answers answers;
  answers.answer(numbered(5), true);
  EXPECT_EQ(answers.ask(numbered(5)), Answer::kNew);
}

TEST(Answers, AnswersWhatAMapWould) {
  std::mt19937_64 random(5);
  Answers answers;
  std::map<std::uint64_t, Answer> model;
  for (int step = 0; step < 200'000; ++step) {
    const std::uint64_t number = random() % 20'000;
    switch (random() % 4) {
      case 0: {
        const bool is_there = random() % 2 == 0;
        answers.answer(numbered(number), is_there);
        if (model.contains(number)) model[number] = is_there ? Answer::kYes : Answer::kNo;
        break;
      }
      case 1:
        if (!model.contains(number)) {
          ASSERT_EQ(answers.ask(numbered(number)), Answer::kNew);
          answers.take_back();
        }
        break;
      default:
        ASSERT_EQ(answers.ask(numbered(number)),
                  model.contains(number) ? model[number] : Answer::kNew);
        model.try_emplace(number, Answer::kPending);
    }
  }
}

}  // namespace
}  // namespace kvferry::cache
