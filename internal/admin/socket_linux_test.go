package admin

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// errFree is the error of a lock that is free.
var errFree = errors.New("free")

func free() error { return errFree }

func held() error { return nil }

func dial(ctx context.Context, s socket, held func() error) (net.Conn, error) {
	return scope{socket: s, held: held}.dial(ctx)
}

// listen opens a socket in the place of another daemon, or of none, and accepts connections.
func listen(t *testing.T, s socket) net.Listener {
	t.Helper()
	l, err := s.listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	kerneltest.Serve(t, l, func(c net.Conn) { _ = c.Close() })
	return l
}

// The folder of the socket is for this user alone, whatever it was before.
func TestTheFolderOfTheSocket(t *testing.T) {
	for name, tt := range map[string]struct {
		make func(folder string) error
		want string // in the error
	}{
		"none":    {func(string) error { return nil }, ""},
		"for all": {func(f string) error { return errors.Join(os.Mkdir(f, 0o700), os.Chmod(f, 0o777)) }, ""},
		"a file":  {func(f string) error { return os.WriteFile(f, nil, 0o600) }, "not a directory"},
		"another's": {
			func(f string) error { return errors.Join(os.Mkdir(f, 0o700), os.Chown(f, kerneltest.Unprivileged, 0)) },
			"sluice: it belongs to user 65534",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := socket{filepath.Join(t.TempDir(), "sluice"), "x"}
			if name == "another's" {
				kerneltest.NeedUsers(t)
			}
			if err := tt.make(s.folder); err != nil {
				t.Fatal(err)
			}
			l, err := s.listen(t.Context())
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("listen: %v, want %q", err, tt.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			if info, err := os.Stat(s.folder); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("the folder has mode %v, %v, want 0700", info.Mode(), err)
			}
		})
	}
}

// The kernel takes paths up to a length; the error names a longer one.
func TestALongPathIsRefused(t *testing.T) {
	folder := t.TempDir()
	longest := socket{folder, strings.Repeat("x", maxPath-len(folder)-len("/.sock"))}
	listen(t, longest)
	long := socket{folder, longest.name + "x"}
	if _, err := long.listen(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "the path "+long.path()+" has 108 bytes") {
		t.Errorf("listen: %v, want that %s is too long", err, long.path())
	}
	if _, err := dial(t.Context(), long, held); err == nil || !strings.Contains(err.Error(), long.path()) {
		t.Errorf("dial: %v, want that %s is too long", err, long.path())
	}
	if _, err := dial(t.Context(), long, free); !errors.Is(err, errFree) {
		t.Errorf("dial: %v, want that the lock is free", err)
	}
}

// A socket that a killed daemon left is nobody, and the next daemon replaces it.
func TestASocketThatWasLeft(t *testing.T) {
	s := socket{t.TempDir(), "x"}
	if _, err := dial(t.Context(), s, free); !errors.Is(err, errFree) {
		t.Errorf("dial without a socket: %v, want that the lock is free", err)
	}
	left, err := s.listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := left.(socketListener).Listener.Close(); err != nil { // the file stays
		t.Fatal(err)
	}
	if _, err := dial(t.Context(), s, free); !errors.Is(err, errFree) {
		t.Errorf("dial a socket that was left: %v, want that the lock is free", err)
	}
	l := listen(t, s)
	c, err := dial(t.Context(), s, held)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if all, err := os.ReadDir(s.folder); len(all) != 0 || err != nil {
		t.Errorf("the end leaves %v, %v", all, err)
	}
}

// While a socket is replaced, one of the two is always there.
func TestASocketIsReplacedAtOnce(t *testing.T) {
	s := socket{t.TempDir(), "x"}
	listen(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	var dialing sync.WaitGroup
	dialing.Go(func() {
		for ctx.Err() == nil {
			c, err := dial(ctx, s, free)
			if errors.Is(err, errFree) {
				t.Error("there was no socket")
				return
			}
			if err == nil {
				_ = c.Close()
			}
		}
	})
	for range 100 {
		listen(t, s)
	}
	cancel()
	dialing.Wait()
}

// A command waits for a daemon that has the lock and does not listen yet, until its time is over.
func TestACommandWaitsForADaemonThatStarts(t *testing.T) {
	s := socket{t.TempDir(), "x"}
	ctx, cancel := context.WithTimeout(t.Context(), 3*dialPause)
	defer cancel()
	_, err := dial(ctx, s, held)
	if e, is := errors.AsType[*UnansweredError](err); !is || e.Socket != s.path() {
		t.Errorf("dial: %v, want an UnansweredError with %s", err, s.path())
	}
	time.AfterFunc(3*dialPause, func() { listen(t, s) })
	c, err := dial(t.Context(), s, held)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

// A command that does not see the socket of the holder says where to run it.
func TestTheSocketIsElsewhere(t *testing.T) {
	o := Options{NetNS: namespace(t)}
	s, err := Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 3*dialPause)
	defer cancel()
	err = Dial(o).Get(ctx, "/echo", nil, new(url.Values))
	if err == nil || !strings.Contains(err.Error(), ".sock here; if it runs in a container, run the command there") {
		t.Errorf("Get: %v, want that it names the socket", err)
	}
}

// The next run of the program adopts the lock and listens.
func TestAHandover(t *testing.T) {
	o := Options{NetNS: namespace(t)}
	first, err := Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	file, err := first.File()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	next, err := Adopt(file, o)
	if err != nil {
		t.Fatal(err)
	}
	serveLock(t, next, answer())
	if err := Dial(o).Get(t.Context(), "/echo", nil, new(url.Values)); err != nil {
		t.Error(err)
	}
}

// userOptions are the options of a daemon without privileges and with a new folder for caches.
func userOptions(t *testing.T, caches string) Options {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", caches)
	return Options{User: true}
}

// A daemon without privileges answers its user.
func TestADaemonOfAUser(t *testing.T) {
	o := userOptions(t, t.TempDir())
	if err := Dial(o).Get(t.Context(), "/echo", nil, new(url.Values)); !errors.Is(err, errNoUserDaemon) {
		t.Errorf("before: %v, want errNoUserDaemon", err)
	}
	stop := serve(t, o)
	if err := Dial(o).Get(t.Context(), "/echo", nil, new(url.Values)); err != nil {
		t.Error(err)
	}
	_, err := Listen(t.Context(), o)
	if taken, is := errors.AsType[*TakenError](err); !is || taken.PID != os.Getpid() || taken.Holder == nil {
		t.Errorf("a second daemon: %v", err)
	}
	stop()
	if err := Dial(o).Get(t.Context(), "/echo", nil, new(url.Values)); !errors.Is(err, errNoUserDaemon) {
		t.Errorf("after: %v, want errNoUserDaemon", err)
	}
}

// Instances of one user run at the same time, and each answers only those who name it.
func TestInstances(t *testing.T) {
	o := userOptions(t, t.TempDir())
	serve(t, o)
	t.Setenv(instanceVariable, "shop")
	if _, err := o.dialNearest(t.Context()); !errors.Is(err, errNoUserDaemon) {
		t.Errorf("before: %v, want errNoUserDaemon", err)
	}
	serve(t, o)
	c, err := o.dialNearest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	t.Setenv(instanceVariable, "../shop")
	const want = `SLUICE_INSTANCE="../shop": expected 1 to 32 of a to z, 0 to 9 and -`
	if _, err := Listen(t.Context(), o); err == nil || err.Error() != want {
		t.Errorf("a wrong name: %v, want %s", err, want)
	}
	if _, err := o.dialNearest(t.Context()); err == nil || err.Error() != want {
		t.Errorf("a command with a wrong name: %v, want %s", err, want)
	}
}

// A command queries the daemon of its network namespace, or else the daemon of its user.
func TestTheNearestDaemon(t *testing.T) {
	o := userOptions(t, t.TempDir())
	both := Options{NetNS: namespace(t)}
	if _, err := both.dialNearest(t.Context()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("without a daemon: %v, want ErrNotRunning", err)
	}
	serve(t, o)
	c, err := both.dialNearest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

// A daemon without a place for the socket keeps its lock.
func TestWithoutASocketTheLockIsHeld(t *testing.T) {
	caches := filepath.Join(t.TempDir(), strings.Repeat("x", maxPath))
	o := userOptions(t, caches)
	s, err := Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(t.Context(), answer()); !errors.Is(err, ErrNoSocket) ||
		!strings.Contains(err.Error(), caches) {
		t.Errorf("Serve: %v, want ErrNoSocket with %s", err, caches)
	}
	ctx, cancel := context.WithTimeout(t.Context(), dialPause)
	defer cancel()
	if _, err := Listen(ctx, o); err == nil {
		t.Error("a second daemon takes the lock")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A user without a folder for caches runs no daemon, and has none to ask.
func TestNoFolderForTheLock(t *testing.T) {
	t.Setenv("HOME", "")
	o := userOptions(t, "")
	if _, err := Listen(t.Context(), o); err == nil || !strings.Contains(err.Error(), "XDG_CACHE_HOME") {
		t.Errorf("Listen: %v, want that it names XDG_CACHE_HOME", err)
	}
	if _, err := o.dial(t.Context()); !errors.Is(err, errNoUserDaemon) {
		t.Errorf("dial: %v, want errNoUserDaemon", err)
	}
}
