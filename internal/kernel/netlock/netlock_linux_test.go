package netlock

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
)

func TestMain(m *testing.M) {
	switch kerneltest.Role() {
	case "hold":
		l, err := Acquire(Options{})
		fmt.Println(err)
		time.Sleep(time.Hour)
		runtime.KeepAlive(l)
	case "acquire":
		_, err := Acquire(Options{})
		fmt.Println(err)
	case "send":
		fmt.Println(Send(Options{}, "from an unprivileged process"))
	case "send-anyway":
		fmt.Println(sendAnyway())
	default:
		os.Exit(kerneltest.Main(m))
	}
}

// sendAnyway sends to every netlink port of netfilter in the list of sockets, without
// checks.
func sendAnyway() error {
	text, err := os.ReadFile("/proc/thread-self/net/netlink")
	if err != nil {
		return err
	}
	fd, err := open()
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		var port uint32
		f := strings.Fields(line)
		if _, err := fmt.Sscan(f[2], &port); err != nil || f[1] != "12" || port == 0 {
			continue
		}
		err := unix.Sendto(fd, []byte("x"), unix.MSG_DONTWAIT, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port})
		if !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("port %d: %w", port, err)
		}
	}
	return nil
}

// acquire takes the lock until the end of the test.
func acquire(t *testing.T, o Options) *Lock {
	t.Helper()
	l, err := Acquire(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestOneHolderInEachNamespace(t *testing.T) {
	one, other := Options{NetNS: kerneltest.Namespace(t)}, Options{NetNS: kerneltest.Namespace(t)}
	if err := Send(one, "x"); !errors.Is(err, ErrFree) {
		t.Errorf("send without a holder: %v, want ErrFree", err)
	}
	first := acquire(t, one)
	acquire(t, other)
	if _, err := Acquire(one); !errors.Is(err, ErrHeld) {
		t.Errorf("acquire twice: %v, want ErrHeld", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	acquire(t, one)
}

// If many try at the same time, exactly one holds the lock.
func TestManyAcquireAtTheSameTime(t *testing.T) {
	o := Options{NetNS: kerneltest.Namespace(t)}
	var all sync.WaitGroup
	var mu sync.Mutex
	results, locks := map[string]int{}, []*Lock{}
	for range 32 {
		all.Go(func() {
			l, err := Acquire(o)
			mu.Lock()
			defer mu.Unlock()
			locks = append(locks, l) // otherwise the garbage collector releases it
			if errors.Is(err, ErrHeld) {
				err = ErrHeld
			}
			results[fmt.Sprint(err)]++
		})
	}
	all.Wait()
	if results["<nil>"] != 1 || results[ErrHeld.Error()] != 31 {
		t.Errorf("results %v, want one holder and 31 times %q", results, ErrHeld)
	}
	for _, l := range locks {
		if l != nil {
			_ = l.Close()
		}
	}
}

func TestKillReleases(t *testing.T) {
	o := Options{NetNS: kerneltest.Namespace(t)}
	for range 3 {
		holder, output := kerneltest.Child(t, o.NetNS, "hold", nil)
		if output != "<nil>" {
			t.Fatal(output)
		}
		if _, err := Acquire(o); !errors.Is(err, ErrHeld) {
			t.Fatalf("acquire while a process holds the lock: %v, want ErrHeld", err)
		}
		if err := holder.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = holder.Wait() // killed
	}
	acquire(t, o)
}

func TestMessages(t *testing.T) {
	o := Options{NetNS: kerneltest.Namespace(t)}
	l := acquire(t, o)
	for _, text := range []string{"one", strings.Repeat("x", MaxMessage)} {
		if err := Send(o, text); err != nil {
			t.Fatal(err)
		}
		got, err := l.Receive()
		if want := (Message{UID: os.Getuid(), Text: text}); err != nil || got != want {
			t.Errorf("received %+v, %v, want %+v", got, err, want)
		}
	}
	if err := Send(o, strings.Repeat("x", MaxMessage+1)); err == nil {
		t.Error("a message that is too long is sent")
	}
	ended := make(chan error)
	go func() {
		_, err := l.Receive()
		ended <- err
	}()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("Receive returned %v, want os.ErrClosed", err)
	}
}

// If the holder does not receive messages, Send fails and does not block.
func TestSendToAFullBuffer(t *testing.T) {
	o := Options{NetNS: kerneltest.Namespace(t)}
	l := acquire(t, o)
	const most = 1 << 14
	for n := 0; ; n++ {
		err := Send(o, "x")
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil || n > most {
			t.Fatalf("message %d: %v, want EAGAIN in the end", n, err)
		}
	}
	if _, err := l.Receive(); err != nil {
		t.Errorf("receive after EAGAIN: %v", err)
	}
}

// A process without privileges can neither take the lock, whether it is free or held, nor
// send a message to its holder.
func TestAnotherUserCannotTakeTheLock(t *testing.T) {
	attr := kerneltest.AsUnprivileged(t)
	o := Options{NetNS: kerneltest.Namespace(t)}
	if _, output := kerneltest.Child(t, o.NetNS, "acquire", attr); !strings.Contains(output, ErrPrivilege.Error()) {
		t.Errorf("acquire a free lock: %s, want %q", output, ErrPrivilege)
	}
	l := acquire(t, o)
	for _, what := range []string{"acquire", "send"} {
		if _, output := kerneltest.Child(t, o.NetNS, what, attr); !strings.Contains(output, ErrPrivilege.Error()) {
			t.Errorf("%s: %s, want %q", what, output, ErrPrivilege)
		}
	}
	if _, output := kerneltest.Child(t, o.NetNS, "send-anyway", attr); output != "<nil>" {
		t.Errorf("send to the port of the holder: %s, want that the kernel refuses", output)
	}
	if err := Send(o, "the first that arrives"); err != nil {
		t.Fatal(err)
	}
	if m, err := l.Receive(); err != nil || m.Text != "the first that arrives" {
		t.Errorf("received %+v, %v", m, err)
	}
}

// Root of another user namespace has no more rights than its user outside.
func TestRootOfAnotherUserNamespaceIsLockedOut(t *testing.T) {
	attr := kerneltest.AsUnprivileged(t)
	attr.Credential = nil
	attr.Cloneflags = syscall.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: kerneltest.Unprivileged, Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: kerneltest.Unprivileged, Size: 1}}
	attr.Credential = &syscall.Credential{}
	o := Options{NetNS: kerneltest.Namespace(t)}
	if _, output := kerneltest.Child(t, o.NetNS, "acquire", attr); !strings.Contains(output, ErrPrivilege.Error()) {
		t.Errorf("acquire: %s, want %q", output, ErrPrivilege)
	}
}

// NFQUEUE provides the lock if the kernel has no NFLOG. A lock that is held in this way is
// also held for processes that find NFLOG later.
func TestBothMechanisms(t *testing.T) {
	for _, m := range mechanisms() {
		o := Options{NetNS: kerneltest.Namespace(t)}
		var fd int
		kerneltest.Do(t, o.NetNS, func() (err error) {
			if fd, err = open(); err != nil {
				return err
			}
			return m.acquire(fd)
		})
		if _, err := Acquire(o); !errors.Is(err, ErrHeld) {
			t.Errorf("%s: %v, want ErrHeld", m.name, err)
		}
		if err := Send(o, "hello"); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if got, err := receive(fd); err != nil || got.Text != "hello" {
			t.Errorf("%s: received %+v, %v", m.name, got, err)
		}
		_ = unix.Close(fd)
		acquire(t, o)
	}
}

func TestAMissingSubsystemIsUnsupported(t *testing.T) {
	o := Options{NetNS: kerneltest.Namespace(t)}
	var err error
	kerneltest.Do(t, o.NetNS, func() error {
		fd, openErr := open()
		if openErr != nil {
			return openErr
		}
		defer func() { _ = unix.Close(fd) }()
		const none = 0xff // no subsystem has this number
		m := mechanisms()[0]
		m.kind = none<<8 | 1
		err = m.acquire(fd)
		return nil
	})
	if !errors.Is(err, ErrUnsupported) {
		t.Errorf("bind to a subsystem that does not exist: %v, want ErrUnsupported", err)
	}
}

// Packets that a rule logs to the number are not messages.
func TestMessagesOfTheKernelAreIgnored(t *testing.T) {
	o := Options{NetNS: kerneltest.Namespace(t)}
	l := acquire(t, o)
	_ = l.raw.Write(func(fd uintptr) bool {
		refused := bytes.Clone(header(20, 0xff<<8)) // the kernel replies that the subsystem does not exist
		_ = unix.Sendto(int(fd), refused, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		return true
	})
	if err := Send(o, "a message"); err != nil {
		t.Fatal(err)
	}
	if m, err := l.Receive(); err != nil || m.Text != "a message" {
		t.Errorf("received %+v, %v, want the message", m, err)
	}
}

func TestTheSocketOfTheHolder(t *testing.T) {
	o := Options{NetNS: kerneltest.Namespace(t)}
	if _, err := Socket(o); !errors.Is(err, ErrFree) {
		t.Errorf("without a holder: %v, want ErrFree", err)
	}
	l := acquire(t, o)
	var stat unix.Stat_t
	_ = l.raw.Control(func(fd uintptr) {
		if err := unix.Fstat(int(fd), &stat); err != nil {
			t.Error(err)
		}
	})
	if got, err := Socket(o); err != nil || got != stat.Ino {
		t.Errorf("Socket = %d, %v, want %d", got, err, stat.Ino)
	}
}

func BenchmarkSend(b *testing.B) {
	o := Options{NetNS: kerneltest.Namespace(b)}
	l, err := Acquire(o)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for b.Loop() {
		if err := Send(o, "x"); err != nil {
			b.Fatal(err)
		}
		if _, err := l.Receive(); err != nil {
			b.Fatal(err)
		}
	}
}
