package iptables

import (
	"context"
	"errors"
	"testing"
)

// A fake says what it has, and counts what it was given.
func TestFakePrints(t *testing.T) {
	f := NewFake()
	if got := f.String(); got != "" {
		t.Errorf("a new one has %s", got)
	}
	input := "*nat\n:B - [0:0]\n:A - [0:0]\n-A A -d 10.0.0.1 -j B\n-I OUTPUT -j A\nCOMMIT\n"
	if err := f.Restore(t.Context(), IPv6, []byte(input)); err != nil {
		t.Fatal(err)
	}
	want := "# ip6tables\n*nat\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n" +
		":A - [0:0]\n:B - [0:0]\n-A OUTPUT -j A\n-A A -d 10.0.0.1/32 -j B\nCOMMIT\n"
	if got := f.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if f.Restores() != 1 || f.Lines() != 4 {
		t.Errorf("%d restores, %d lines", f.Restores(), f.Lines())
	}
	wrong := errors.New("wrong")
	f.Fail = func(Family, []byte) error { return wrong }
	f.FailRead = func(Table) error { return wrong }
	if err := f.Restore(t.Context(), IPv4, []byte(input)); !errors.Is(err, wrong) {
		t.Errorf("got %v", err)
	}
	if _, err := f.Read(t.Context(), Table{IPv4, "nat"}); !errors.Is(err, wrong) {
		t.Errorf("got %v", err)
	}
	if got := f.String(); got != want {
		t.Errorf("after an error:\n%s", got)
	}
}

// Those who watch a fake are told what others do with what is theirs.
func TestFakeTells(t *testing.T) {
	f := NewFake()
	ctx, stop := context.WithCancel(t.Context())
	edits, listening, done := make(chan Edit, 10), make(chan struct{}), make(chan error, 1)
	go func() {
		kube := func(chain string) bool { return chain == "KUBE-A" }
		done <- f.Watch(ctx, kube, func() { close(listening) }, func(e Edit) { edits <- e })
	}()
	<-listening
	if err := f.Restore(t.Context(), IPv4, []byte("*nat\n:KUBE-A - [0:0]\n-A OUTPUT -j KUBE-A\nCOMMIT\n")); err != nil {
		t.Fatal(err)
	}
	for _, input := range []string{
		"*nat\n:OTHER - [0:0]\n-A OTHER -j ACCEPT\n-A OUTPUT -j OTHER\nCOMMIT\n", // nobody's business
		"*nat\n-D OUTPUT -j KUBE-A\nCOMMIT\n",
		"*nat\n-A KUBE-A -j ACCEPT\nCOMMIT\n",
		"*nat\n-F KUBE-A\nCOMMIT\n",
		"*nat\n-X KUBE-A\nCOMMIT\n",
		"*nat\n-N KUBE-A\nCOMMIT\n",
	} {
		if err := f.Edit(IPv4, input); err != nil {
			t.Fatal(err)
		}
	}
	f.Drop(Table{IPv4, "filter"})
	f.Drop(Table{IPv4, "nat"})
	f.Lose()
	for _, want := range []string{
		"rule of OUTPUT in nat", "rule of KUBE-A in nat", "rule of KUBE-A in nat", "chain KUBE-A in nat",
		"chain KUBE-A in nat", "chain KUBE-A in nat", "notifications were lost",
	} {
		if e := <-edits; e.What != want {
			t.Errorf("told %+v, want %s", e, want)
		}
	}
	if len(edits) > 0 {
		t.Errorf("told too much: %v", <-edits)
	}
	if f.String() != "" {
		t.Errorf("left:\n%s", f)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := f.Edit(IPv4, "*nat\n:KUBE-A - [0:0]\nCOMMIT\n"); err != nil || len(edits) > 0 {
		t.Errorf("told after the end, or %v", err)
	}
}
