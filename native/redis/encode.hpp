#pragma once
// encode: one command of a batch as bytes in an outbox.
//
// Framed values: the 64-byte header is made here, so the payload is read once for its checksum
// just before it is sent, and once more where it is encoded. The stripes of one value share a
// generation over all their checksums; whoever encodes the first of them computes it for all.

#include "redis/outbox.hpp"
#include "redis/work_queue.hpp"

namespace kvferry::redis {

// The whole command. Requires: outbox.room_for_command().
void encode(Work work, Outbox& outbox);

// A SET in two parts: up to where its payload begins, and from there.
void encode_set_head(Work work, Outbox& outbox);
void encode_set_body(Work work, Outbox& outbox);

// AUTH. `user` may be empty. Requires: an outbox that is empty, for tokens may be long.
void encode_auth(std::string_view user, std::string_view password, Outbox& outbox);

}  // namespace kvferry::redis
