package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/internal/kernel/unixsock"
)

// role says what a copy of this test program does instead of testing.
const role = "SLUICE_TEST_CONTROL_ROLE"

// stranger is the user of processes that are not trusted.
const stranger = 12345

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "daemon":
		daemon()
	case "stranger-asks":
		become(stranger)
		fmt.Println(Dial(Options{}).Get(context.Background(), "/echo", nil, new(url.Values)))
	case "stranger-holds":
		become(stranger)
		daemon()
	case "stranger-crowds":
		become(stranger)
		crowd()
	default:
		os.Exit(kerneltest.Main(m))
	}
}

func become(uid int) {
	if err := syscall.Setuid(uid); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// daemon takes the place, says so and stays.
func daemon() {
	s, err := Listen(context.Background(), Options{})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("serving")
	_ = s.Serve(context.Background(), identity(), answer())
}

// crowd makes as many connections as it can, says how many were not hung up on,
// and keeps them.
func crowd() {
	kept := 0
	for range 5 * maxStrangers {
		c, err := unixsock.Dial(context.Background(), Options{}.socket())
		if err != nil {
			break
		}
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			kept++
		}
	}
	fmt.Println(kept)
	select {}
}

// namespace is one for a test.
func namespace(t *testing.T) int { return kerneltest.Namespace(t) }

// spawn runs a copy of this program in a role and returns the first line it
// says. It is killed with the test.
func spawn(t *testing.T, netns int, as string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), role+"="+as)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	kerneltest.Do(t, netns, cmd.Start) // the child is where the thread is
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%s says %q: %v", as, line, err)
	}
	return cmd, strings.TrimSpace(line)
}

// needStranger skips where root is the only user there is.
func needStranger(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		t.Fatal(err)
	}
	if f := strings.Fields(string(b)); len(f) == 3 && f[2] == "1" {
		t.Skip("the user namespace of this process has one user only")
	}
}

// The lock goes with the process, also if that is killed.
func TestKillFreesThePlace(t *testing.T) {
	o := Options{NetNS: namespace(t)}
	for range 3 {
		first, said := spawn(t, o.NetNS, "daemon")
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
		_ = first.Wait() // "killed"
	}
	s, err := Listen(t.Context(), o)
	if err != nil {
		t.Fatalf("after a kill: %v", err)
	}
	_ = s.Close()
}

func TestOnlyRootIsAnswered(t *testing.T) {
	needStranger(t)
	o := Options{NetNS: namespace(t)}
	serve(t, o)
	_, said := spawn(t, o.NetNS, "stranger-asks")
	if want := "only root may ask the daemon: run as root, for example with sudo"; said != want {
		t.Errorf("a stranger is told %q, want %q", said, want)
	}
}

// Strangers that keep connections open cannot keep root out.
func TestACrowdDoesNotKeepRootOut(t *testing.T) {
	needStranger(t)
	o := Options{NetNS: namespace(t)}
	serve(t, o)
	_, said := spawn(t, o.NetNS, "stranger-crowds")
	if want := fmt.Sprint(maxStrangers); said != want {
		t.Errorf("%s connections of strangers are kept, want %s", said, want)
	}
	if err := Dial(o).Get(t.Context(), "/echo", nil, new(url.Values)); err != nil {
		t.Errorf("root is not answered: %v", err)
	}
}

// Anybody may take the name. It is not taken for a daemon then.
func TestAStrangerIsNoDaemon(t *testing.T) {
	needStranger(t)
	o := Options{NetNS: namespace(t)}
	thief, said := spawn(t, o.NetNS, "stranger-holds")
	if said != "serving" {
		t.Fatal(said)
	}
	want := OccupiedError{PID: thief.Process.Pid, UID: stranger}
	_, listen := Listen(t.Context(), o)
	get := Dial(o).Get(t.Context(), "/echo", nil, new(url.Values))
	for what, err := range map[string]error{"listening": listen, "asking": get} {
		got, ok := errors.AsType[*OccupiedError](err)
		if !ok || *got != want {
			t.Errorf("%s: %v, want %v", what, err, &want)
		}
	}
}

// bind takes the name without listening.
func bind(t *testing.T, o Options) (fd int) {
	t.Helper()
	kerneltest.Do(t, o.NetNS, func() (err error) {
		fd, err = syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		return err
	})
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: name}); err != nil {
		t.Fatal(err)
	}
	return fd
}

// Who has the name and takes no connections is no daemon either, and that is
// known soon. Nothing else is.
func TestWhoTakesNoConnectionsIsNoDaemon(t *testing.T) {
	o := Options{NetNS: namespace(t)}
	fd := bind(t, o)
	defer func() { _ = syscall.Close(fd) }()
	known := func(what string) {
		t.Helper()
		began := time.Now()
		_, err := Listen(t.Context(), o)
		got, ok := errors.AsType[*OccupiedError](err)
		if !ok || *got != (OccupiedError{PID: unknown, UID: unknown}) {
			t.Errorf("%s: %v, want an OccupiedError of nobody known", what, err)
		}
		if took := time.Since(began); took < goingTries*goingPause || took > patience+goingTries*goingPause {
			t.Errorf("%s: known after %v", what, took)
		}
	}
	known("only bound")
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	first, err := unixsock.Dial(t.Context(), o.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	known("no room for another connection")
}

// One that is just going is waited for, and no longer than the context.
func TestWhoIsGoingIsWaitedFor(t *testing.T) {
	o := Options{NetNS: namespace(t)}
	fd := bind(t, o)
	ctx, cancel := context.WithTimeout(t.Context(), goingPause)
	defer cancel()
	if _, err := Listen(ctx, o); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("until the context ended: %v", err)
	}
	going := time.AfterFunc(2*goingPause, func() { _ = syscall.Close(fd) })
	defer going.Stop()
	s, err := Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
}
