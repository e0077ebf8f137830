module kvferry/tests/node/go_redis

go 1.26.0

require github.com/redis/go-redis/v9 v9.23.0
