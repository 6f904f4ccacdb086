package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/internal/kernel/netlock"
)

func TestMain(m *testing.M) {
	switch kerneltest.Role() {
	case "daemon":
		daemon()
	case "ask":
		fmt.Println(Dial(Options{}).Get(context.Background(), "/echo", nil, new(url.Values)))
	case "listen":
		_, err := Listen(context.Background(), Options{})
		fmt.Println(err)
	case "impostor":
		impersonate()
	case "flood":
		fmt.Println("flooding")
		flood()
	default:
		os.Exit(kerneltest.Main(m))
	}
}

// daemon takes the lock, prints a line and stays.
func daemon() {
	s, err := Listen(context.Background(), Options{})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("serving")
	_ = s.Serve(context.Background(), identity(), answer())
}

// impersonate is a false daemon at every name that a daemon could have: it listens
// there and gives an endless answer full of escape sequences.
func impersonate() {
	for _, name := range []string{"sluice", "control", "lock", "daemon"} {
		l, err := net.Listen("unix", namePrefix+name)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		go func() { _ = http.Serve(l, http.HandlerFunc(endless)) }()
	}
	fmt.Println("impersonating")
	select {}
}

// endless is an answer without an end that writes to the terminal.
func endless(w http.ResponseWriter, _ *http.Request) {
	chunk := append([]byte(`{"items": ["`), bytes.Repeat([]byte("\x1b]0;owned\a\x1b[2J"), 4<<10)...)
	for {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}

// flood connects to every abstract socket of Sluice's that it can see, as fast
// as it can, with a false answer on each connection.
func flood() {
	var sockets []net.Conn
	for {
		text, _ := os.ReadFile("/proc/self/net/unix")
		for line := range strings.Lines(string(text)) {
			_, token, found := strings.Cut(strings.TrimSpace(line), namePrefix)
			if !found {
				continue
			}
			c, err := net.Dial("unix", namePrefix+token)
			if err != nil {
				continue
			}
			_, _ = io.WriteString(c, strings.Repeat("0", tokenText)+"HTTP/1.1 200 OK\r\n\r\n{\"x\": [\"\x1b[2J\"]}")
			if sockets = append(sockets, c); len(sockets) > 500 {
				for _, s := range sockets {
					_ = s.Close()
				}
				sockets = nil
			}
		}
	}
}

// namespace returns a new network namespace for a test.
func namespace(t *testing.T) int { return kerneltest.Namespace(t) }

// The lock goes with the process, also if that is killed.
func TestKillReleasesTheLock(t *testing.T) {
	o := Options{NetNS: namespace(t)}
	for range 3 {
		first, said := kerneltest.Child(t, o.NetNS, "daemon", nil)
		if said != "serving" {
			t.Fatal(said)
		}
		_, err := Listen(t.Context(), o)
		taken, ok := errors.AsType[*TakenError](err)
		if !ok || taken.PID != first.Process.Pid {
			t.Fatalf("Listen = %v, want it taken by pid %d", err, first.Process.Pid)
		}
		if err := first.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = first.Wait() // killed
	}
	s, err := Listen(t.Context(), o)
	if err != nil {
		t.Fatalf("after a kill: %v", err)
	}
	_ = s.Close()
}

// A daemon that is stopped (SIGSTOP) still has the lock and is named.
func TestAStoppedDaemonIsNamed(t *testing.T) {
	o := Options{NetNS: namespace(t)}
	first, said := kerneltest.Child(t, o.NetNS, "daemon", nil)
	if said != "serving" {
		t.Fatal(said)
	}
	if err := first.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_, err := Listen(t.Context(), o)
	if taken, ok := errors.AsType[*TakenError](err); !ok || taken.PID != first.Process.Pid || taken.Holder != nil {
		t.Errorf("Listen = %#v, want it taken by pid %d, without more", err, first.Process.Pid)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = Dial(o).Get(ctx, "/echo", nil, new(url.Values))
	if _, is := errors.AsType[*UnansweredError](err); !is {
		t.Errorf("Get = %v, want an UnansweredError", err)
	}
}

func TestOnlyRootMayQueryOrListen(t *testing.T) {
	attr := kerneltest.AsUnprivileged(t)
	o := Options{NetNS: namespace(t)}
	serve(t, o)
	for as, want := range map[string]string{"ask": errNotRoot.Error(), "listen": ErrPrivilege.Error()} {
		if _, said := kerneltest.Child(t, o.NetNS, as, attr); said != want {
			t.Errorf("an unprivileged process that would %s gets %q, want %q", as, said, want)
		}
	}
}

// Processes without privileges that listen where a daemon might, as well as
// they can, are neither asked nor in the way of a daemon.
func TestAFalseDaemonIsNotQueried(t *testing.T) {
	attr := kerneltest.AsUnprivileged(t)
	o := Options{NetNS: namespace(t)}
	if _, said := kerneltest.Child(t, o.NetNS, "impostor", attr); said != "impersonating" {
		t.Fatal(said)
	}
	if err := Dial(o).Get(t.Context(), "/echo", nil, new(url.Values)); !errors.Is(err, ErrNotRunning) {
		t.Errorf("with a false daemon only: %v, want ErrNotRunning", err)
	}
	serve(t, o)
	for range 10 {
		var echo url.Values
		if err := Dial(o).Get(t.Context(), "/echo", url.Values{"i": {"1"}}, &echo); err != nil || echo.Get("i") != "1" {
			t.Errorf("beside a false daemon: %v, %v", echo, err)
		}
	}
}

// Two processes that connect in a loop to every socket of a command or daemon,
// each with a false answer, keep root neither from asking nor from finding that
// a daemon runs. With a queue of one connection they are as strong as can be.
func TestAFloodDoesNotBlockRoot(t *testing.T) {
	for _, queue := range []string{"4096", "1"} {
		t.Run("queue of "+queue, func(t *testing.T) { testFlood(t, queue) })
	}
}

func testFlood(t *testing.T, queue string) {
	t.Helper()
	attr := kerneltest.AsUnprivileged(t)
	o := Options{NetNS: namespace(t)}
	kerneltest.Do(t, o.NetNS, func() error { return os.WriteFile("/proc/sys/net/core/somaxconn", []byte(queue), 0) })
	if _, said := kerneltest.Child(t, o.NetNS, "daemon", nil); said != "serving" {
		t.Fatal(said)
	}
	for range 2 {
		if _, said := kerneltest.Child(t, o.NetNS, "flood", attr); said != "flooding" {
			t.Fatal(said)
		}
	}
	for i := range 10 {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var echo url.Values
		if err := Dial(o).Get(ctx, "/echo", url.Values{"i": {"1"}}, &echo); err != nil || echo.Get("i") != "1" {
			t.Errorf("question %d: %v, %v", i, echo, err)
		}
		t.Logf("question %d took %v", i, time.Since(began))
		_, err := Listen(ctx, o)
		if _, taken := errors.AsType[*TakenError](err); !taken {
			t.Errorf("second daemon %d: %v, want that the lock is taken", i, err)
		}
		cancel()
	}
}

// Root without CAP_NET_ADMIN, as in many containers, can see the name of an
// invitation and connect, but does not know the proof.
func TestConnectionsWithoutTheProofAreClosed(t *testing.T) {
	o := Options{NetNS: namespace(t)}
	i := newInvitation()
	l, err := i.socket(o).listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	silent, err := i.socket(o).dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	wrong := invitation{name: i.name, proof: strings.Repeat("0", tokenText)}
	impostor, err := wrong.follow(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = impostor.Close() }()
	right, err := i.follow(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = right.Close() }()
	c, err := i.accept(t.Context(), l, &refusedPeers{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := right.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(io.LimitReader(c, 1)); err != nil || string(got) != "x" {
		t.Errorf("the connection that was chosen reads %q, %v, want that of the daemon", got, err)
	}
	if _, err := io.ReadAll(impostor); err == nil {
		_, err = impostor.Write([]byte("x"))
		if err == nil {
			t.Error("the connection of the impostor is open")
		}
	}
}

// The daemon gives its proof, and its answers, to root alone.
func TestInvitationsOfUnprivilegedUsersAreIgnored(t *testing.T) {
	attr := kerneltest.AsUnprivileged(t)
	o := Options{NetNS: namespace(t)}
	if _, said := kerneltest.Child(t, o.NetNS, "impostor", attr); said != "impersonating" {
		t.Fatal(said)
	}
	i := invitation{name: "daemon", proof: strings.Repeat("0", tokenText)}
	if _, err := i.follow(t.Context(), o); err == nil || !strings.Contains(err.Error(), "belongs to uid 65534") {
		t.Errorf("follow = %v, want that it refuses", err)
	}
}

func TestInvalidInvitationsAreIgnored(t *testing.T) {
	o := Options{NetNS: namespace(t)}
	serve(t, o)
	token := strings.Repeat("a", tokenText)
	for _, text := range []string{
		" ", "x", greeting, greeting + " a b", greeting + " " + token, greeting + " " + token + " " + token + " x",
		greeting + " " + token + " ../" + token[3:], "x " + token + " " + token, strings.Repeat("x", netlock.MaxMessage), "\x00",
		greeting + " " + token + " " + token, // nobody listens there
	} {
		if err := netlock.Send(netlock.Options{NetNS: o.NetNS}, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := Dial(o).Get(t.Context(), "/echo", nil, new(url.Values)); err != nil {
		t.Errorf("after that: %v", err)
	}
}

// A daemon without bounds, also one of root, fills neither memory nor screen.
func TestAnEndlessAnswerIsCutOff(t *testing.T) {
	o := Options{NetNS: namespace(t)}
	s, err := Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/endless", endless)
	mux.HandleFunc("/long", func(w http.ResponseWriter, _ *http.Request) {
		for _, err := w.Write([]byte(`["`)); err == nil; {
			_, err = w.Write(bytes.Repeat([]byte("x"), 1<<20))
		}
	})
	mux.HandleFunc("/refusal", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusTeapot)
		endless(w, r)
	})
	mux.HandleFunc("/header", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X", strings.Repeat("x", 2*maxHeader))
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Serve(ctx, identity(), mux) })
	defer running.Wait()
	defer cancel()
	client := Dial(o)
	body, err := client.Ask(ctx, "/endless", nil)
	if err != nil {
		t.Fatal(err)
	}
	const most = 1 << 20
	n, err := io.Copy(io.Discard, &bounded{body, most})
	if n != most || err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("read %d bytes, %v, want %d and that it is too long", n, err, most)
	}
	_ = body.Close()
	if _, err := client.Ask(ctx, "/refusal", nil); err == nil || len(err.Error()) > maxRefusal {
		t.Errorf("a refusal without end has %d bytes", len(err.Error()))
	}
	if _, err := client.Ask(ctx, "/header", nil); err == nil {
		t.Error("a header of 128 KiB is read")
	}
	client.maxAnswer = 4 << 20
	var out any
	if err := client.Get(ctx, "/long", nil, &out); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("decoding an endless answer: %v, want that it is too long", err)
	}
}
