// What go-redis sends to a node at HOST:PORT, with RESP2 and RESP3. Says "well", or panics.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func same(got, wanted any) {
	if got != wanted {
		panic(fmt.Sprintf("%v, not %v", got, wanted))
	}
}

func talk(ctx context.Context, address string, protocol int) {
	r := redis.NewClient(&redis.Options{Addr: address, Protocol: protocol, ClientName: "go"})
	defer r.Close()
	must(r.FlushAll(ctx).Err())
	value := bytes.Repeat([]byte{0, 1, 13, 10}, 1<<20)
	must(r.Set(ctx, "a", value, time.Minute).Err())
	got, err := r.Get(ctx, "a").Bytes()
	must(err)
	same(bytes.Equal(got, value), true)
	same(errors.Is(r.Get(ctx, "none").Err(), redis.Nil), true)
	there, err := r.SetNX(ctx, "a", "1", time.Hour).Result()
	must(err)
	same(there, false)
	same(r.StrLen(ctx, "a").Val(), int64(len(value)))
	same(r.Exists(ctx, "a", "none").Val(), int64(1))
	same(r.Type(ctx, "a").Val(), "string")
	same(r.TTL(ctx, "a").Val() > time.Second*40, true)
	pipe := r.Pipeline()
	for i := 0; i < 100; i++ {
		pipe.Set(ctx, fmt.Sprintf("k%d", i), i, 0)
	}
	_, err = pipe.Exec(ctx)
	must(err)
	found := 0
	scan := r.Scan(ctx, 0, "k*", 7).Iterator()
	for scan.Next(ctx) {
		found++
	}
	must(scan.Err())
	same(found, 100)
	same(r.Unlink(ctx, "k1", "k2").Val(), int64(2))
	same(r.DBSize(ctx).Val(), int64(99))
	must(r.ClientInfo(ctx).Err())
	must(r.ClientList(ctx).Err())
	must(r.Info(ctx, "server").Err())
	same(r.ConfigGet(ctx, "maxclients").Val()["maxclients"], "10000")
	same(r.LPush(ctx, "list", "x").Err() != nil, true)
	same(r.Ping(ctx).Val(), "PONG")
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, protocol := range []int{2, 3} {
		talk(ctx, os.Args[1], protocol)
	}
	fmt.Println("well")
}
