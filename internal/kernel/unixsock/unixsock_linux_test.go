package unixsock

import (
	"errors"
	"os"
	"testing"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

const name = "@sluice-proxy/test"

// Each network namespace has the name for itself; in one of them it is taken
// by the first and free again when that closes.
func TestANameBelongsToANamespace(t *testing.T) {
	here := Options{Name: name, NetNS: kerneltest.Namespace(t)}
	there := Options{Name: name, NetNS: kerneltest.Namespace(t)}
	ctx := t.Context()

	if _, err := Dial(ctx, here); !errors.Is(err, ErrNobody) {
		t.Errorf("dial before anybody listens: %v, want ErrNobody", err)
	}
	first, err := Listen(ctx, here)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(ctx, here); !errors.Is(err, ErrInUse) {
		t.Errorf("listen twice: %v, want ErrInUse", err)
	}
	if _, err := Dial(ctx, there); !errors.Is(err, ErrNobody) {
		t.Errorf("dial in another namespace: %v, want ErrNobody", err)
	}
	other, err := Listen(ctx, there)
	if err != nil {
		t.Fatalf("listen in another namespace: %v", err)
	}
	defer func() { _ = other.Close() }()

	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Listen(ctx, here)
	if err != nil {
		t.Fatalf("listen after the first closed: %v", err)
	}
	_ = again.Close()
}

func TestBothEndsKnowWhoTheOtherIs(t *testing.T) {
	o := Options{Name: name, NetNS: kerneltest.Namespace(t)}
	l, err := Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	client, err := Dial(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	server, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()

	want := Peer{PID: os.Getpid(), UID: os.Getuid()}
	for end, conn := range map[string]func() (Peer, error){
		"client": func() (Peer, error) { return PeerOf(client) },
		"server": func() (Peer, error) { return PeerOf(server) },
	} {
		if got, err := conn(); err != nil || got != want {
			t.Errorf("the %s's peer is %+v, %v, want %+v", end, got, err, want)
		}
	}
	_ = server.Close()
	if _, err := PeerOf(server); err == nil {
		t.Error("a closed connection has a peer")
	}
}

func TestNoSuchNamespace(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	o := Options{Name: name, NetNS: int(f.Fd())}
	const want = "enter network namespace: invalid argument"
	if _, err := Listen(t.Context(), o); err == nil || err.Error() != "listen on "+name+": "+want {
		t.Errorf("listen: %v, want %q", err, want)
	}
	if _, err := Dial(t.Context(), o); err == nil || err.Error() != "connect to "+name+": "+want {
		t.Errorf("dial: %v, want %q", err, want)
	}
}
