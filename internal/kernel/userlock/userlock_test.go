package userlock_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/userlock"
	"github.com/sluice-proxy/sluice/test/machine"
)

// holdVariable has the folder of the lock that a child of the tests holds.
const holdVariable = "SLUICE_TEST_HOLD"

func TestMain(m *testing.M) {
	if folder := os.Getenv(holdVariable); folder != "" {
		_, err := userlock.Acquire(userlock.Options{Folder: folder})
		fmt.Println("acquired", err)
		time.Sleep(time.Minute) // until it is killed
		return
	}
	os.Exit(m.Run())
}

func options(t *testing.T) userlock.Options {
	t.Helper()
	return userlock.Options{Folder: filepath.Join(t.TempDir(), "sluice")}
}

func acquire(t *testing.T, o userlock.Options) *userlock.Lock {
	t.Helper()
	l, err := userlock.Acquire(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// listen returns a running listener of the holder of a lock.
func listen(t *testing.T, l *userlock.Lock) *userlock.Listener {
	t.Helper()
	listener, err := l.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(listener.Run)
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
	})
	return listener
}

// One process holds the lock; when it closes it, the next gets it.
func TestOneHolds(t *testing.T) {
	o := options(t)
	if _, err := userlock.Holder(o); !errors.Is(err, userlock.ErrFree) {
		t.Errorf("before: %v, want ErrFree", err)
	}
	l := acquire(t, o)
	if _, err := userlock.Acquire(o); !errors.Is(err, userlock.ErrHeld) {
		t.Errorf("a second time: %v, want ErrHeld", err)
	}
	if pid, err := userlock.Holder(o); pid != 0 || err != nil {
		t.Errorf("the holder, which does not listen, is %d, %v", pid, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	acquire(t, o)
}

// A process that is killed holds the lock no longer.
func TestAKilledHolder(t *testing.T) {
	o := options(t)
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), holdVariable+"="+o.Folder)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "acquired <nil>" {
		t.Fatalf("the child says %q, %v", line, err)
	}
	if _, err := userlock.Acquire(o); !errors.Is(err, userlock.ErrHeld) {
		t.Fatalf("while it runs: %v, want ErrHeld", err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // it was killed
	acquire(t, o)
}

// Commands reach the holder and learn its PID.
func TestDial(t *testing.T) {
	o := options(t)
	if _, _, err := userlock.Dial(t.Context(), o); !errors.Is(err, userlock.ErrFree) {
		t.Errorf("without a holder: %v, want ErrFree", err)
	}
	l := acquire(t, o)
	if _, _, err := userlock.Dial(t.Context(), o); !errors.Is(err, userlock.ErrSilent) {
		t.Errorf("before it listens: %v, want ErrSilent", err)
	}
	listener := listen(t, l)
	c, pid, err := userlock.Dial(t.Context(), o)
	if err != nil || pid != os.Getpid() {
		t.Fatalf("Dial: pid %d, %v", pid, err)
	}
	defer func() { _ = c.Close() }()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(server, "hello"); err != nil {
		t.Fatal(err)
	}
	_ = server.Close()
	if got, err := io.ReadAll(c); string(got) != "hello" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := userlock.Dial(t.Context(), o); !errors.Is(err, userlock.ErrSilent) {
		t.Errorf("after the listener is closed: %v, want ErrSilent", err)
	}
}

// A connection without the secret is closed, however long it is silent, and keeps nobody
// else from an answer.
func TestWithoutTheSecret(t *testing.T) {
	o := options(t)
	listener := listen(t, acquire(t, o))
	var strangers []net.Conn
	for _, text := range []string{"", "GET / HTTP/1.1\r\nHost: sluice.localhost\r\n\r\n"} {
		c, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		strangers = append(strangers, c)
	}
	c, _, err := userlock.Dial(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := server.RemoteAddr().String(), c.LocalAddr().String(); got != want {
		t.Errorf("accepted %s, want %s", got, want)
	}
	_ = server.Close()
	for _, c := range strangers {
		if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a stranger's connection stays open: %d bytes, %v", len(got), err)
		}
	}
}

// A program that has got the port of the holder is not taken for it, and does not learn the secret.
func TestAnotherProgramAtThePort(t *testing.T) {
	o := options(t)
	listener := listen(t, acquire(t, o))
	at := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	stranger, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Close() }()
	sent := make(chan int, 1)
	go func() {
		c, err := stranger.Accept()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		_, _ = c.Write(make([]byte, 1000))
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		all, _ := io.ReadAll(c)
		sent <- len(all)
	}()
	if c, _, err := userlock.Dial(t.Context(), o); !errors.Is(err, userlock.ErrSilent) {
		t.Errorf("Dial: %v, %v, want ErrSilent", c, err)
	}
	if n := <-sent; n != 16 {
		t.Errorf("the other program received %d bytes, want a random number only", n)
	}
}

// However many connections are silent, a command is served.
func TestManySilentConnections(t *testing.T) {
	const silent = 200
	o := options(t)
	listener := listen(t, acquire(t, o))
	for range silent {
		c, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	begin := time.Now()
	c, _, err := userlock.Dial(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	served := make(chan error, 1)
	go func() {
		server, err := listener.Accept()
		if err == nil {
			_, err = io.WriteString(server, "x")
		}
		served <- err
	}()
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatalf("a command is not served: %v", err)
	}
	if err := <-served; err != nil || time.Since(begin) > machine.Scale(time.Second) {
		t.Errorf("served after %v, %v", time.Since(begin), err)
	}
}

// What the last holder wrote is not used when the next does not listen yet.
func TestTheLastAddressIsForgotten(t *testing.T) {
	o := options(t)
	l := acquire(t, o)
	listen(t, l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	acquire(t, o)
	if _, _, err := userlock.Dial(t.Context(), o); !errors.Is(err, userlock.ErrSilent) {
		t.Errorf("Dial: %v, want ErrSilent", err)
	}
}
