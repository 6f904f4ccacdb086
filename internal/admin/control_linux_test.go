package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/machine"
)

// since is when the daemons of these tests began.
var since = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

type named = struct{ Name string }

func identity() Identity {
	return Identity{PID: os.Getpid(), Version: "v1.2.0", Since: since, Mode: named{"nftables"}, Node: named{"node-a"}}
}

// answer is the answer of the daemons of these tests.
func answer() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/status", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(identity()) })
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(r.URL.Query())
	})
	mux.HandleFunc("/missing", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no Service default/web", http.StatusServiceUnavailable)
	})
	mux.HandleFunc("/unknown", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no Service default/db", http.StatusNotFound)
	})
	mux.HandleFunc("/silent", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	mux.HandleFunc("/invalid", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "odd") })
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	return mux
}

// serve runs a daemon; the function ends it.
func serve(t *testing.T, o Options) (stop func()) {
	t.Helper()
	return serveWith(t, o, answer())
}

// serveWith runs a daemon that answers by a handler.
func serveWith(t *testing.T, o Options, answers http.Handler) (stop func()) {
	t.Helper()
	s, err := Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return serveLock(t, s, answers)
}

// serveLock runs a daemon that has its lock.
func serveLock(t *testing.T, s *Server, answers http.Handler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, answers) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func TestQueries(t *testing.T) {
	o := Options{NetNS: namespace(t)}
	stop := serve(t, o)
	client := Dial(o)

	var echo url.Values
	if err := client.Get(t.Context(), "/echo", url.Values{"name": {"default/web"}}, &echo); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(echo); got != "map[name:[default/web]]" {
		t.Errorf("the answer is %s", got)
	}

	for _, tt := range []struct{ path, want string }{
		{"/missing", "no Service default/web"},
		{"/unknown", "no Service default/db"},
		{"/silent", "503 Service Unavailable"},
		{
			"/invalid", "read the answer of the daemon (does it have another version?): " +
				"invalid character 'o' looking for beginning of value",
		},
		{"/new", "the daemon does not know this query: it has another version; sluice status shows it"},
		{"/slow", "the daemon has not answered in time"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if tt.path == "/slow" {
			ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
		}
		err := client.Get(ctx, tt.path, nil, &echo)
		cancel()
		if err == nil || err.Error() != tt.want {
			t.Errorf("GET %s: %v, want %q", tt.path, err, tt.want)
		}
		if _, is := errors.AsType[NotFoundError](err); is != (tt.path == "/unknown") {
			t.Errorf("GET %s: %v is a NotFoundError: %t", tt.path, err, is)
		}
	}

	stop()
	if err := client.Get(t.Context(), "/echo", nil, &echo); !errors.Is(err, ErrNotRunning) {
		t.Errorf("after it ended: %v, want ErrNotRunning", err)
	}
	again, err := Listen(t.Context(), o)
	if err != nil {
		t.Fatalf("after it ended the lock is not free: %v", err)
	}
	_ = again.Close()
}

// An answer under way does not hold up the end of the daemon.
func TestStoppingIsQuick(t *testing.T) {
	o := Options{NetNS: namespace(t)}
	answering := make(chan struct{})
	stop := serveWith(t, o, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(answering)
		<-r.Context().Done()
	}))
	asked := make(chan error, 1)
	go func() { asked <- Dial(o).Get(t.Context(), "/slow", nil, nil) }()
	<-answering
	began := time.Now()
	stop()
	if took := time.Since(began); took > machine.Scale(20*stopTimeout) {
		t.Errorf("took %v", took)
	}
	if err := <-asked; err == nil {
		t.Error("who asked got an answer from a daemon that ended")
	}
}

func TestASecondDaemonNamesTheFirst(t *testing.T) {
	o := Options{NetNS: namespace(t)}
	serve(t, o)
	_, err := Listen(t.Context(), o)
	taken, ok := errors.AsType[*TakenError](err)
	if !ok || taken.Holder == nil || *taken.Holder != identity() {
		t.Fatalf("Listen = %#v, want a TakenError with the first", err)
	}
	want := fmt.Sprintf("another Sluice (pid %d, v1.2.0 on node-a, mode nftables, since 2026-11-20T10:00:00Z) "+
		"already serves this network namespace; stop it first", os.Getpid())
	if taken.Error() != want {
		t.Errorf("it says:\n%s\nwant:\n%s", taken, want)
	}
	serve(t, Options{NetNS: namespace(t)}) // another namespace is another place
}

// A daemon that has taken the place and does not answer (yet) is named by what the kernel knows.
func TestASilentDaemonIsNamedByItsPID(t *testing.T) {
	o := Options{NetNS: namespace(t)}
	first, err := Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = Listen(ctx, o)
	want := fmt.Sprintf("another Sluice (pid %d) already serves", os.Getpid())
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Listen = %v, want %q in it", err, want)
	}
}

func TestProcessesOfOtherPIDNamespacesHaveNoNumber(t *testing.T) {
	holder := &Identity{PID: 1, Version: "v1", Since: since, Mode: named{"m"}, Node: named{"h"}}
	odd := &Identity{Version: "\x1b[2Jv1\n", Since: since, Node: named{strings.Repeat("h", 1000)}}
	for err, want := range map[error]string{
		&TakenError{}:                      "another Sluice (pid unknown) already serves",
		&TakenError{Holder: holder}:        "another Sluice (pid unknown, v1 on h, mode m, since 2026-11-20T10:00:00Z)",
		&TakenError{Holder: odd}:           " [2Jv1  on " + strings.Repeat("h", 64) + "..., mode , since ",
		&UnansweredError{}:                 "the daemon has not answered in time",
		&UnansweredError{Socket: "/run/x"}: "nobody listens at /run/x here; if it runs in a container, run the command there",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q\nwant in it:\n%q", err, want)
		}
	}
}

// Connections of root that are silent make room for those that ask.
func TestSilentConnectionsOfRoot(t *testing.T) {
	o := Options{NetNS: namespace(t), MaxConns: 2}
	serve(t, o)
	for i := range 10 {
		c, err := o.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		var echo url.Values
		want := fmt.Sprint(i)
		if err := Dial(o).Get(t.Context(), "/echo", url.Values{"i": {want}}, &echo); err != nil || echo.Get("i") != want {
			t.Errorf("question %d beside %d silent connections is answered %v, %v", i, i+1, echo, err)
		}
	}
}

// Many ask at once.
func TestManyQueries(t *testing.T) {
	o := Options{NetNS: namespace(t)}
	serve(t, o)
	var all sync.WaitGroup
	for i := range 128 {
		all.Go(func() {
			var echo url.Values
			want := fmt.Sprint(i)
			if err := Dial(o).Get(t.Context(), "/echo", url.Values{"i": {want}}, &echo); err != nil || echo.Get("i") != want {
				t.Errorf("question %d is answered %v, %v", i, echo, err)
			}
		})
	}
	all.Wait()
}
