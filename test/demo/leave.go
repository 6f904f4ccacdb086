//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
)

// leave stops Sluice and removes its tables.
func (t *tour) leave() error {
	t.head("Leave")
	took, err := t.stop()
	if err != nil {
		return err
	}
	stay, err := t.tables()
	if err != nil {
		return err
	}
	t.pass("SIGTERM: stopped in %s. The rules stay: %s.", millis(took), strings.Join(stay, ", "))
	if _, err := t.NodeA.Run("", t.options.sluice, "--cleanup"); err != nil {
		t.fail("sluice --cleanup: %v", err)
	}
	left, err := t.tables()
	if err != nil {
		return err
	}
	if len(left) > 0 {
		t.fail("sluice --cleanup left %s.", strings.Join(left, ", "))
		return nil
	}
	t.pass("sluice --cleanup: no table is left.")
	return nil
}

// tables returns the names of the tables on node A.
func (t *tour) tables() ([]string, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(t.NodeA.NetNSFD()))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	list, err := conn.ListTables()
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	var out []string
	for _, table := range list {
		family := "table ip "
		if table.Family == nftables.TableFamilyIPv6 {
			family = "table ip6 "
		}
		out = append(out, family+table.Name)
	}
	slices.Sort(out)
	return out, nil
}

// leftovers checks, after the lab has ended, that nothing of the demo remains and
// that the network of the machine is as it was.
func (t *tour) leftovers(before string) {
	var left []string
	for deadline := time.Now().Add(3 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if left = append(usersOf(t.namespaces), running(t.pids)...); len(left) == 0 {
			break
		}
	}
	if len(left) > 0 {
		t.fail("Left behind: %s", strings.Join(left, ", "))
		return
	}
	t.pass("%d namespaces gone, %d processes ended, nothing is left.", len(t.namespaces), len(t.pids))
	if after, err := machineNetwork(os.Getppid()); err != nil || after != before {
		t.fail("The interfaces or routes of this machine have changed, but not by the demo, which cannot: %v", err)
		return
	}
	t.pass("This machine's own interfaces and routes are as they were.")
	t.addFact("Left behind", "nothing: %d namespaces and %d processes gone", len(t.namespaces), len(t.pids))
}

// running returns the processes that have not ended.
func running(pids []int) []string {
	var out []string
	for _, pid := range pids {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
			out = append(out, fmt.Sprintf("process %d", pid))
		}
	}
	return out
}

// usersOf returns the threads in network namespaces and the descriptors of them.
func usersOf(namespaces []string) []string {
	var out []string
	for _, pattern := range []string{"/proc/[0-9]*/task/[0-9]*/ns/net", "/proc/[0-9]*/fd/*"} {
		files, _ := filepath.Glob(pattern) // the patterns are valid
		for _, file := range files {
			target, err := os.Readlink(file)
			// An error means that the process has ended, or belongs to another user.
			if err == nil && slices.Contains(namespaces, target) {
				out = append(out, file)
			}
		}
	}
	return out
}

// machineNetwork returns the interfaces and routes of the network of a process.
// The parent of this process created the namespaces, and is outside them.
func machineNetwork(pid int) (string, error) {
	dev, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", pid))
	if err != nil {
		return "", fmt.Errorf("read interfaces: %w", err)
	}
	route, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/route", pid))
	if err != nil {
		return "", fmt.Errorf("read routes: %w", err)
	}
	return columns(dev, 1) + columns(route, 3), nil
}

// columns returns the first columns of a table, without the counters after them.
func columns(table []byte, n int) string {
	var b strings.Builder
	for line := range bytes.Lines(table) {
		fields := strings.Fields(string(bytes.ReplaceAll(line, []byte(":"), []byte(": "))))
		b.WriteString(strings.Join(fields[:min(n, len(fields))], " ") + "\n")
	}
	return b.String()
}

func (t *tour) summary(took time.Duration) {
	fmt.Fprintf(t, "\n     %s\n\n", t.paint(strong, "In short"))
	for _, f := range t.facts {
		t.say("%s %s", t.paint(faint, fmt.Sprintf("%-14s", f.name)), f.result)
	}
	fmt.Fprintln(t)
	if len(t.failures) == 0 {
		t.pass("Everything above was shown and measured in this run, in %.1f s.", took.Seconds())
	}
	for _, f := range t.failures {
		fmt.Fprintf(t, "   %s\n", t.paint(red, "✗ "+f))
	}
	if len(t.failures) > 0 && t.sluice != nil {
		t.note("The log of sluice ends:\n%s", t.sluice.Log.End())
	}
	fmt.Fprintln(t)
}
