//go:build linux

package hostile

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// roleVar is an environment variable that makes the test binary act as an unprivileged local
// user in a role.
const roleVar = "SLUICE_HOSTILE_ROLE"

// The roles.
const (
	roleSquat   = "squat"   // holds the abstract name and accepts no connection
	roleEndless = "endless" // answers endlessly, with escape sequences
	roleRefuse  = "refuse"  // refuses like a daemon, with escape sequences
	roleFlood   = "flood"   // connects as often as possible
	roleHold    = "hold"    // connects and keeps connections open
)

// nobody is the user of these processes.
const nobody = 65534

// abstractName is the name of the control socket.
const abstractName = "@sluice-proxy/sluice"

// escapes must never reach a terminal.
const escapes = "\x1b]0;owned\x07\x1b[2J\x1b[31m"

// controlSocket are attacks of unprivileged local users on the control socket.
func controlSocket() []attack {
	var rows []attack
	for role, name := range map[string]string{
		roleSquat:   "a local user takes the name of the control socket",
		roleEndless: "a local user answers endlessly at the control socket",
		roleRefuse:  "a local user impersonates the daemon and refuses",
	} {
		rows = append(rows, attack{
			name: name,
			before: func(s *attackTest) {
				s.startLocalUser(role)
				s.checkWithoutDaemon()
			},
			during: checkStatus, after: checkSingleDaemon,
		})
	}
	return append(rows, attack{
		name: "local users flood the control socket", alone: true, duration: 3 * time.Second, limits: limits{cpu: 1},
		during: func(ctx context.Context, s *attackTest) error {
			for _, role := range []string{roleFlood, roleFlood, roleHold} {
				defer s.startLocalUser(role)()
			}
			err := checkStatus(ctx, s)
			checkSingleDaemon(s)
			return err
		},
	})
}

// startLocalUser starts a process of user nobody on node A and waits until it is ready. The
// returned function ends it.
func (s *attackTest) startLocalUser(role string) (end func()) {
	s.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	out, err := cmd.StdoutPipe()
	s.must(err)
	wait, err := s.lab.NodeA.Start(cmd)
	s.must(err)
	end = func() {
		_ = cmd.Process.Kill() // an error means that it has already ended
		_ = wait()
	}
	s.stops = append(s.stops, end)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "ready\n" {
		s.Errorf("process in the role %s: %q, %v", role, line, err)
	}
	return end
}

// checkWithoutDaemon runs commands while no daemon runs. They must fail soon, within little
// memory, and print no text of the local user.
func (s *attackTest) checkWithoutDaemon() {
	s.Helper()
	for _, args := range [][]string{{"status"}, {"status", "-o", "json"}, {"get", "services"}, {"diff"}} {
		out, code := s.runSluice(args...)
		if code <= 0 || strings.Contains(out, "owned") || strings.ContainsAny(out, "\x1b\x07") || strings.Contains(out, "out of memory") {
			s.Errorf("sluice %s accepted the answer of a local user: exit code %d (-1: timeout), %.300q", strings.Join(args, " "), code, out)
		}
	}
}

// checkStatus queries the status repeatedly; each time the real daemon must answer.
func checkStatus(ctx context.Context, s *attackTest) error {
	for n := range 10 {
		out, code := s.runSluice("status", "-o", "json")
		var status struct{ PID int }
		err := json.Unmarshal([]byte(out), &status)
		if code != 0 || err != nil || status.PID != s.daemon.PID {
			return fmt.Errorf("attempt %d of sluice status: exit code %d, or not the status of the daemon: %.300q", n+1, code, out)
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

// runRole runs the process of a local user in a role. It returns only if it fails.
func runRole(role string) error {
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(nobody), syscall.Setuid(nobody)); err != nil {
		return fmt.Errorf("become user %d: %w", nobody, err)
	}
	switch role {
	case roleSquat:
		l, err := net.Listen("unix", abstractName)
		ready(err)
		time.Sleep(time.Hour) // select {} would be a deadlock, which ends the program
		return l.Close()
	case roleEndless, roleRefuse:
		l, err := net.Listen("unix", abstractName)
		ready(err)
		for err == nil {
			var conn net.Conn
			if conn, err = l.Accept(); err == nil {
				go impersonate(conn, role)
			}
		}
		return err
	}
	ready(nil)
	for range 4 {
		go flood(role)
	}
	select {}
}

// flood connects to all sockets of Sluice as fast as possible. In roleHold it keeps connections
// open.
func flood(role string) {
	var kept []net.Conn
	for {
		for _, name := range controlNames() {
			for range 1000 {
				conn, err := net.Dial("unix", name)
				switch {
				case err != nil:
				case role == roleHold && len(kept) < 200:
					kept = append(kept, conn)
				default:
					_ = conn.Close()
				}
			}
		}
	}
}

// ready tells the test that the role is running.
func ready(err error) {
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("ready")
}

// impersonate answers like a daemon that wants to harm its client.
func impersonate(conn net.Conn, role string) {
	defer func() { _ = conn.Close() }()
	_, _ = conn.Read(make([]byte, 1<<10))
	head := "200 OK\r\nSluice-Version: v1.0.0"
	if role == roleRefuse {
		head = "409 Conflict\r\nSluice-Version: owned"
	}
	_, err := conn.Write([]byte("HTTP/1.1 " + head + "\r\nContent-Type: application/json\r\n\r\n" +
		`{"version":"\u001b]0;owned\u0007","health":{"state":"healthy","reason":"` + escapes + "\n"))
	for filler := []byte(strings.Repeat("owned ", 10_000)); err == nil && role == roleEndless; {
		_, err = conn.Write(filler)
	}
}

// controlNames are the unix sockets of Sluice in this network namespace.
func controlNames() []string {
	text, _ := os.ReadFile("/proc/net/unix")
	names := []string{abstractName}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if name := fields[len(fields)-1]; strings.Contains(name, "sluice") && name != abstractName {
			names = append(names, name)
		}
	}
	return names
}
