package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
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
	case "hold":
		_, err := Listen(context.Background(), Options{User: true})
		fmt.Println(err)
		time.Sleep(time.Minute) // until it is killed
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
	_ = s.Serve(context.Background(), answer())
}

// endless is an answer without an end that writes to the terminal.
func endless(w http.ResponseWriter, _ *http.Request) {
	chunk := bytes.Repeat([]byte(`"\u001b]0;owned"`+"\n"), 4<<10)
	for {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}

// namespace returns a new network namespace for a test.
func namespace(t *testing.T) int { return kerneltest.Namespace(t) }

// The lock is released when the process ends, even if it is killed.
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
	if _, err := syscall.Wait4(first.Process.Pid, nil, syscall.WUNTRACED, nil); err != nil { // it runs on until then
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
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "1\n{}") // no end of the line
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
	running.Go(func() { _ = s.Serve(ctx, mux) })
	defer running.Wait()
	defer cancel()
	client := Dial(o)
	for path, want := range map[string]string{"/long": "too long", "/endless": "too long", "/cut": "unexpected EOF"} {
		client.most = 4 << 20
		if got, err := All[any](client.Ask(ctx, path, nil)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: read %d lines, %v, want %s", path, len(got), err, want)
		}
	}
	if err := client.Get(ctx, "/refusal", nil, nil); err == nil || len(err.Error()) > maxRefusal {
		t.Errorf("a refusal without end has %d bytes", len(err.Error()))
	}
	if err := client.Get(ctx, "/header", nil, nil); err == nil {
		t.Error("a header of 128 KiB is read")
	}
}
