package unixsock

import (
	"errors"
	"os"
	"syscall"
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

// A name can be had without listening, and by one who takes no more connections.
// Neither makes who wants it wait.
func TestANameThatAnswersNobody(t *testing.T) {
	o := Options{Name: name, NetNS: kerneltest.Namespace(t)}
	var fd int
	kerneltest.Do(t, o.NetNS, func() (err error) {
		fd, err = syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		return err
	})
	defer func() { _ = syscall.Close(fd) }()
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: name}); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), o); !errors.Is(err, ErrInUse) {
		t.Errorf("listen where it is bound: %v, want ErrInUse", err)
	}
	if _, err := Dial(t.Context(), o); !errors.Is(err, ErrNobody) {
		t.Errorf("dial where it is only bound: %v, want ErrNobody", err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	first, err := Dial(t.Context(), o) // waits to be accepted, for which there is room once
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	if _, err := Dial(t.Context(), o); !errors.Is(err, ErrBusy) {
		t.Errorf("dial where there is no more room: %v, want ErrBusy", err)
	}
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
