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
	"golang.org/x/sys/unix"
)

// cleanup stops sluice and takes its tables away.
func (t *tour) cleanup() error {
	t.head("Leave")
	took, err := t.end()
	if err != nil {
		return err
	}
	stay, err := t.tables()
	if err != nil {
		return err
	}
	t.pass("SIGTERM: stopped in %s. The rules stay: %s.", millis(took), list(stay))
	if out, err := t.NodeA.Run("", t.options.sluice, "--cleanup"); err != nil {
		t.fail("sluice --cleanup: %v", err)
		t.note("%s", out)
	}
	left, err := t.tables()
	if err != nil {
		return err
	}
	if len(left) > 0 {
		t.fail("sluice --cleanup left %s.", list(left))
		return nil
	}
	t.pass("sluice --cleanup: no table is left.")
	return nil
}

// end asks sluice to stop, and tells what it had warned of.
func (t *tour) end() (time.Duration, error) {
	took, err := t.sluice.signal(unix.SIGTERM)
	if err != nil {
		return 0, err
	}
	if err := t.sluice.wait(); err != nil {
		t.fail("sluice ended badly when asked to stop: %v", err)
	}
	for _, w := range t.sluice.log.warnings() {
		if !strings.Contains(w, foreignEdit) {
			t.note("%s", clip("It had warned: "+w, 90))
		}
	}
	return took, nil
}

// foreignEdit is what sluice warns of when it repairs.
const foreignEdit = "Another program changed our rules"

func list(names []string) string { return strings.Join(names, ", ") }

// tables lists those of node A.
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

// leftovers looks for what the demo might have left, once its lab has ended.
func (t *tour) leftovers(before machine) {
	var left []string
	for deadline := time.Now().Add(3 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		left = append(usersOf(t.spaces), running(t.pids)...)
		if len(left) == 0 {
			break
		}
	}
	if len(left) > 0 {
		t.fail("Left behind: %s", strings.Join(left, ", "))
		return
	}
	t.pass("%d namespaces gone, %d processes ended, nothing is left.", len(t.spaces), len(t.pids))
	after, err := lookAtMachine(os.Getppid())
	if err != nil {
		t.note("This machine's own network cannot be looked at again: %v", err)
		return
	}
	if after != before {
		t.fail("This machine's own interfaces or routes changed meanwhile; the demo has no way to.")
		return
	}
	t.pass("This machine's own interfaces and routes are as they were.")
	t.learn("Left behind", "nothing: %d namespaces and %d processes gone", len(t.spaces), len(t.pids))
}

// running returns those of the processes that have not ended.
func running(pids []int) []string {
	var out []string
	for _, pid := range pids {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
			out = append(out, fmt.Sprintf("process %d", pid))
		}
	}
	return out
}

// usersOf finds threads in, and descriptors of, network namespaces.
func usersOf(namespaces []string) []string {
	var out []string
	for _, pattern := range []string{"/proc/[0-9]*/task/[0-9]*/ns/net", "/proc/[0-9]*/fd/*"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			continue // the patterns are good
		}
		for _, file := range files {
			target, err := os.Readlink(file)
			if err == nil && slices.Contains(namespaces, target) { // an error: gone, or not ours to read
				out = append(out, file)
			}
		}
	}
	return out
}

// machine is what there is to see of the network this was started in.
type machine struct{ interfaces, routes string }

// lookAtMachine looks with the eyes of a process outside: the one that made the
// namespaces of this.
func lookAtMachine(pid int) (machine, error) {
	links, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", pid))
	if err != nil {
		return machine{}, fmt.Errorf("look at interfaces: %w", err)
	}
	routes, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/route", pid))
	if err != nil {
		return machine{}, fmt.Errorf("look at routes: %w", err)
	}
	return machine{columns(links, 1), columns(routes, 3)}, nil
}

// columns keeps the first columns of a table, without the counters after them.
func columns(table []byte, n int) string {
	var b strings.Builder
	for line := range bytes.Lines(table) {
		fields := strings.Fields(string(bytes.ReplaceAll(line, []byte(":"), []byte(": "))))
		b.WriteString(strings.Join(fields[:min(n, len(fields))], " ") + "\n")
	}
	return b.String()
}

// summary ends the tour.
func (t *tour) summary(took time.Duration) {
	fmt.Fprintf(t, "\n     %s\n\n", t.paint(strong, "In short"))
	for _, f := range t.facts {
		t.say("%s %s", t.paint(faint, fmt.Sprintf("%-14s", f.what)), f.result)
	}
	fmt.Fprintln(t)
	if len(t.failures) == 0 {
		t.pass("All of it shown and measured in this run, in %.1f s.", took.Seconds())
		fmt.Fprintln(t)
		return
	}
	for _, f := range t.failures {
		fmt.Fprintf(t, "   %s\n", t.paint(red, "✗ "+f))
	}
	if t.sluice != nil {
		t.note("The log of sluice ends:\n%s", t.sluice.log.last(10))
	}
	fmt.Fprintln(t)
}
