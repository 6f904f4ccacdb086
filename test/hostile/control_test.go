//go:build linux

package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/test/harness"
)

// intruderVar is an environment variable that makes the test binary act as an unprivileged local user. It has the
// path of the control socket.
const intruderVar = "SLUICE_HOSTILE_INTRUDER"

// nobody is the user of this process.
const nobody = 65534

// controlSocket are attacks of unprivileged local users on the control socket.
func controlSocket() []attack {
	return []attack{{
		name: "a local user attacks the control socket",
		during: func(ctx context.Context, s *attackTest) error {
			err := errors.Join(s.intrude(), checkStatus(ctx, s))
			checkSingleDaemon(s)
			return err
		},
	}}
}

// intrude runs a process of user nobody on node A, which must not reach the control socket.
func (s *attackTest) intrude() error {
	inode, err := netns.Inode(s.lab.NodeA.NetNSFD())
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=/run/sluice/%d.sock", intruderVar, inode))
	out, code, err := harness.Run(s.lab.NodeA, commandTimeout(), cmd)
	if err == nil && code != 0 {
		err = fmt.Errorf("a local user reaches the control socket: exit code %d: %s", code, out)
	}
	return err
}

// checkStatus queries the status repeatedly; each time the real daemon must answer.
func checkStatus(ctx context.Context, s *attackTest) error {
	for n := range 10 {
		out, code := s.runSluice("status", "-o", "json")
		var status struct{ PID int }
		err := json.Unmarshal([]byte(out), &status)
		if code != 0 || err != nil || status.PID != s.daemon.PID {
			return fmt.Errorf("attempt %d of sluice status: exit code %d, or not the status of the daemon: %.300q",
				n+1, code, out)
		}
		s.pause(ctx, 50*time.Millisecond)
	}
	return nil
}

// checkSingleDaemon verifies that neither a second daemon nor a cleanup runs while the daemon
// is running. Both may wait until it ends: without a daemon they need a fraction of this time.
func checkSingleDaemon(s *attackTest) {
	s.Helper()
	var both sync.WaitGroup
	for _, args := range [][]string{append(slices.Clip(s.args), "--cleanup"), s.args} {
		both.Go(func() {
			if out, code := s.runSluiceWithin(1500*time.Millisecond, args...); code == 0 || strings.Contains(out, "msg=Synced") {
				s.Errorf("sluice %s runs beside the daemon: exit code %d: %s", args[len(args)-1], code, abridged(out))
			}
		})
	}
	both.Wait()
	if way := s.ways()[0]; !s.answers(way.From, way.To, s.pods[0]) {
		s.Errorf("the rules of the daemon were removed")
	}
}

// runIntruder is the process of a local user: it connects to the control socket, lists its folder, and puts itself in
// its place. It returns an error if anything but missing permission keeps it from that.
func runIntruder(socket string) error {
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(nobody), syscall.Setuid(nobody)); err != nil {
		return fmt.Errorf("become user %d: %w", nobody, err)
	}
	folder := filepath.Dir(socket)
	for name, do := range map[string]func() error{
		"connect": func() error { _, err := net.Dial("unix", socket); return err },
		"listen":  func() error { _, err := net.Listen("unix", strings.TrimSuffix(socket, "sock")+"new"); return err },
		"list":    func() error { _, err := os.ReadDir(folder); return err },
		"open":    func() error { return os.Chmod(folder, 0o777) },
		"remove":  func() error { return os.Remove(socket) },
		"replace": func() error { return os.Rename(folder, folder+"-mine") },
	} {
		err := do()
		if err == nil {
			return errors.New("it may " + name)
		}
		if !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("%s: %w, want that permission is missing", name, err)
		}
	}
	return nil
}
