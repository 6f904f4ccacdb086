//go:build linux

package hostile

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/internal/kubechain"
)

// cleanUp stops the daemon, runs --cleanup, and verifies that nothing remains on node A.
func (s *attackTest) cleanUp() {
	s.Helper()
	s.daemon.checkAlive()
	s.daemon.stop(syscall.SIGTERM)
	if out, code := s.runSluice("--cleanup"); code != 0 {
		s.Errorf("sluice --cleanup exits with %d: %s", code, abridged(out))
	}
	if left := s.leftovers(); len(left) > 0 {
		s.Errorf("remaining on the node:\n%s", strings.Join(left, "\n"))
	}
}

// leftovers lists the tables, chains, sockets and processes of Sluice.
func (s *attackTest) leftovers() []string {
	s.Helper()
	var left []string
	for line := range strings.Lines(s.lab.NodeA.MustRun("nft", "list", "tables")) {
		name := strings.Fields(line)
		ofVariant := s.plane.variant == "nft" && slices.Contains([]string{"nat", "filter", "mangle", "raw"}, name[2])
		if !strings.Contains(s.tables, line) && !ofVariant {
			left = append(left, line)
		}
	}
	for _, program := range []string{"iptables", "ip6tables"} {
		if s.plane.variant == "" {
			break
		}
		for line := range strings.Lines(s.lab.NodeA.MustRun(program + "-" + s.plane.variant + "-save")) {
			chain, _, _ := strings.Cut(strings.TrimPrefix(line, ":"), " ")
			if kubechain.Proxy(chain) {
				left = append(left, program+" "+line)
			}
		}
	}
	for line := range strings.Lines(s.lab.NodeA.MustRun("cat", "/proc/net/unix", "/proc/net/tcp", "/proc/net/tcp6")) {
		fields := strings.Fields(line)
		listens := len(fields) > 3 && fields[3] == "0A" && strings.HasSuffix(fields[0], ":")
		if listens || strings.Contains(line, "sluice") {
			left = append(left, "socket "+line)
		}
	}
	return append(left, s.processes()...)
}

// processes lists the processes in the network namespace of node A.
func (s *attackTest) processes() []string {
	var all []string
	here, err := os.Stat(s.lab.NodeA.NetNSPath())
	s.must(err)
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	s.must(err)
	for _, file := range commands {
		there, err := os.Stat(filepath.Join(filepath.Dir(file), "ns", "net"))
		if err != nil || !os.SameFile(here, there) || file == fmt.Sprintf("/proc/%d/cmdline", os.Getpid()) {
			continue
		}
		text, _ := os.ReadFile(file)
		all = append(all, "process "+strings.ReplaceAll(string(text), "\x00", " "))
	}
	return all
}

// inventory lists resources of tests outside their nodes: child processes, open network
// namespaces, and sockets in /run.
func inventory(t *testing.T) []string {
	t.Helper()
	var all []string
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		text, _ := os.ReadFile(file)
		fields := strings.Fields(string(text[strings.LastIndex(string(text), ")")+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(os.Getpid()) {
			all = append(all, "child "+string(text))
		}
	}
	namespaces, _ := filepath.Glob("/proc/self/fd/*")
	for _, file := range namespaces {
		if to, err := os.Readlink(file); err == nil && strings.HasPrefix(to, "net:") {
			all = append(all, "namespace "+to)
		}
	}
	err := filepath.WalkDir("/run", func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type()&fs.ModeSocket != 0 {
			all = append(all, "socket "+path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return all
}
