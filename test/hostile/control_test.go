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

// roleVar makes this program a local user without privileges that plays a role.
const roleVar = "SLUICE_HOSTILE_ROLE"

// The roles.
const (
	squats = "squats" // holds the abstract name and accepts nothing
	fakes  = "fakes"  // is a daemon that answers without an end, with escape sequences
	lies   = "lies"   // is a daemon that refuses, with escape sequences
	floods = "floods" // connects as often as it can
	holds  = "holds"  // connects and keeps connections
)

// nobody is the user of these processes.
const nobody = 65534

// abstractName is that of the control socket.
const abstractName = "@sluice-proxy/sluice"

// escapes are what a terminal must never see of a stranger.
const escapes = "\x1b]0;owned\x07\x1b[2J\x1b[31m"

// controlSocket is what local users without privileges do to it.
func controlSocket() []attack {
	var rows []attack
	for role, name := range map[string]string{
		squats: "a local user takes the name of the control socket",
		fakes:  "a local user answers without an end at the control socket",
		lies:   "a local user refuses in the name of the daemon",
	} {
		rows = append(rows, attack{
			name: name,
			before: func(s *siege) {
				s.stranger(role)
				s.notFooled()
			},
			during: statusAnswers, after: oneDaemon,
		})
	}
	return append(rows, attack{
		name: "local users flood the control socket", alone: true, lasts: 4 * time.Second, limits: limits{cpu: 1},
		during: func(ctx context.Context, s *siege) error {
			for _, role := range []string{floods, floods, holds} {
				defer s.stranger(role)()
			}
			err := statusAnswers(ctx, s)
			oneDaemon(s)
			return err
		},
	})
}

// stranger starts a process of nobody's on node A and waits until it is ready.
// The function ends it.
func (s *siege) stranger(role string) (end func()) {
	s.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	out, err := cmd.StdoutPipe()
	s.must(err)
	wait, err := s.lab.NodeA.Start(cmd)
	s.must(err)
	end = func() {
		_ = cmd.Process.Kill() // ended already: fine
		_ = wait()
	}
	s.stops = append(s.stops, end)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "ready\n" {
		s.Errorf("the process that %s the socket: %q, %v", role, line, err)
	}
	return end
}

// notFooled asks while no daemon runs, which must fail soon, within little
// memory, and without a word of the stranger's.
func (s *siege) notFooled() {
	s.Helper()
	for _, args := range [][]string{{"status"}, {"status", "-o", "json"}, {"get", "services"}, {"diff"}} {
		out, code := s.ask(args...)
		if code <= 0 || strings.Contains(out, "owned") || strings.ContainsAny(out, "\x1b\x07") || strings.Contains(out, "out of memory") {
			s.Errorf("sluice %s asks a stranger: exit code %d (-1: it waits on), %.300q", strings.Join(args, " "), code, out)
		}
	}
}

// statusAnswers asks for the status of the real daemon, which must answer each
// time.
func statusAnswers(ctx context.Context, s *siege) error {
	for n := range 10 {
		out, code := s.ask("status", "-o", "json")
		var status struct{ PID int }
		err := json.Unmarshal([]byte(out), &status)
		if code != 0 || err != nil || status.PID != s.daemon.PID {
			return fmt.Errorf("the status asked for the %dth time exits with %d, and is not the daemon's: %.300q", n+1, code, out)
		}
		s.pause(ctx, 50*time.Millisecond)
	}
	return nil
}

// oneDaemon verifies that neither a second daemon nor a clean-up runs beside the
// daemon. Both may wait for it to end.
func oneDaemon(s *siege) {
	s.Helper()
	var both sync.WaitGroup
	for _, args := range [][]string{append(slices.Clip(s.args), "--cleanup"), s.args} {
		both.Go(func() {
			if out, code := s.askWithin(askTime/2, args...); code == 0 || strings.Contains(out, "msg=Synced") {
				s.Errorf("sluice %s runs beside the daemon: exit code %d: %s", args[len(args)-1], code, abridged(out))
			}
		})
	}
	both.Wait()
	if way := s.ways()[0]; !s.answers(way.From, way.To, s.pods[0]) {
		s.Errorf("the rules of the daemon are gone")
	}
}

// play is what a process of nobody's does. It returns only if it cannot.
func play(role string) error {
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(nobody), syscall.Setuid(nobody)); err != nil {
		return fmt.Errorf("become user %d: %w", nobody, err)
	}
	switch role {
	case squats:
		_, err := net.Listen("unix", abstractName)
		ready(err)
		select {}
	case fakes, lies:
		l, err := net.Listen("unix", abstractName)
		ready(err)
		for err == nil {
			var conn net.Conn
			if conn, err = l.Accept(); err == nil {
				go pretend(conn, role)
			}
		}
		return err
	}
	ready(nil)
	for range 4 {
		go crowdIn(role)
	}
	select {}
}

// crowdIn connects to all sockets of Sluice's as fast as it can. One that holds
// keeps its connections.
func crowdIn(role string) {
	var kept []net.Conn
	for {
		for _, name := range controlNames() {
			for range 1000 {
				conn, err := net.Dial("unix", name)
				switch {
				case err != nil:
				case role == holds && len(kept) < 200:
					kept = append(kept, conn)
				default:
					_ = conn.Close()
				}
			}
		}
	}
}

// ready tells the test that the role is being played.
func ready(err error) {
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("ready")
}

// pretend answers as a daemon would that wants to harm who asks.
func pretend(conn net.Conn, role string) {
	defer func() { _ = conn.Close() }()
	_, _ = conn.Read(make([]byte, 1<<10))
	head := "200 OK\r\nSluice-Version: v1.0.0"
	if role == lies {
		head = "409 Conflict\r\nSluice-Version: owned"
	}
	_, err := conn.Write([]byte("HTTP/1.1 " + head + "\r\nContent-Type: application/json\r\n\r\n" +
		`{"version":"\u001b]0;owned\u0007","health":{"state":"healthy","reason":"` + escapes + "\n"))
	for filler := []byte(strings.Repeat("owned ", 10_000)); err == nil && role == fakes; {
		_, err = conn.Write(filler)
	}
}

// controlNames are the unix sockets of Sluice's in this network namespace.
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
