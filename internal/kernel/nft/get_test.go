package nft

import (
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
)

// An element is found by its key, with its data and what is left of its timeout.
func TestGet(t *testing.T) {
	netns := kerneltest.Namespace(t)
	conn, err := Open(Options{NetNS: netns})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // nothing is left to lose
	table := Table{IP4, "t"}
	key := string(Key{}.Index(7).Addr(addr(IP4, 3)))
	get := func(set, key string) (Found, bool) {
		t.Helper()
		found, ok, err := conn.Get(table, set, key)
		if err != nil {
			t.Fatal(err)
		}
		return found, ok
	}
	if _, ok := get("m", key); ok {
		t.Error("finds an element in no table")
	}
	runNft(t, netns, "add table ip t; add map ip t m { type classid . ipv4_addr : mark; flags dynamic,timeout; size 100; }")
	if _, ok := get("m", key); ok {
		t.Error("finds an element in an empty set")
	}
	runNft(t, netns, "add element ip t m { 0:7 . "+addr(IP4, 3).String()+" timeout 1m : 0x2a }")
	found, ok := get("m", key)
	if !ok || found.Data != string(Key{}.Index(0x2a)) || found.Left <= 50*time.Second || found.Left > time.Minute {
		t.Errorf("finds %q, %s, %t", found.Data, found.Left, ok)
	}
	if _, ok := get("m", string(Key{}.Index(8).Addr(addr(IP4, 3)))); ok {
		t.Error("finds an element with another key")
	}
}
