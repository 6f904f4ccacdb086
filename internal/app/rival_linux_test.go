package app

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// runWithEvents runs a daemon until the test ends, and returns a function that waits for an Event.
func runWithEvents(t *testing.T, o Options) (await func(is func(inspect.Event) bool) inspect.Event) {
	t.Helper()
	d, err := newDaemon(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	runUntilEnd(t, "the daemon", d.run)
	return func(is func(inspect.Event) bool) (found inspect.Event) {
		t.Helper()
		eventually(t, func() bool {
			events, _ := d.history.Events(0)
			i := slices.IndexFunc(events, is)
			if i >= 0 {
				found = events[i]
			}
			return i >= 0
		})
		return found
	}
}

// A process with the name and a port of kube-proxy is reported in an Event and in the status, with its
// executable and advice.
func TestAKubeProxyIsReported(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kube-proxy")
	if err := os.WriteFile(path, text, 0o755); err != nil {
		t.Fatal(err)
	}
	o := options(t, "--manifests="+manifests(t, webService))
	o.NetNS = kerneltest.Namespace(t)
	cmd := exec.Command(path, "600")
	kerneltest.Do(t, o.NetNS, func() error {
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 10256})
		if err != nil {
			return err
		}
		file, err := l.File()
		if err != nil {
			return err
		}
		cmd.ExtraFiles = []*os.File{file}
		return errors.Join(cmd.Start(), file.Close(), l.Close()) // it alone listens
	})
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	}()
	await := runWithEvents(t, o)
	want := fmt.Sprintf("kube-proxy (pid %d, %s) runs beside Sluice (it listens on port 10256)", cmd.Process.Pid, path)
	e := await(func(e inspect.Event) bool { return e.Reason == "KubeProxyRuns" })
	if !strings.HasPrefix(e.Note, want) || !strings.HasSuffix(e.Note, "--ignore-kube-proxy") {
		t.Errorf("event %+v, want %q", e, want)
	}
	var s inspect.Status
	if err := admin.Dial(admin.Options{NetNS: o.NetNS}).Get(t.Context(), "/status", nil, &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Takeover) != 1 || !strings.HasPrefix(s.Takeover[0], want) {
		t.Errorf("status %q, want %q", s.Takeover, want)
	}
}
