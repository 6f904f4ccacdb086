//go:build linux

package exact

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// change is something that happens to the Services.
type change struct {
	name string
	do   func(*node) // returns before it is in the kernel
}

// longer is longer than any timer of the proxy after which it still acts on a change.
const longer = 3 * time.Second

// changes begin with Services whose only backend is pod-a.
func changes() []change {
	return []change{
		{"start", func(*node) {}},
		{"another backend", func(n *node) { n.serve("pod-b") }},
		{"no backend", func(n *node) { n.serve() }},
		{"the first backend again", func(n *node) { n.serve("pod-a") }},
		{"no Service", (*node).remove},
		{"the Service again", func(n *node) { n.serve("pod-a") }},
		{"another mode", func(n *node) { n.configure("nftables") }},
		{"the mode again", func(n *node) { n.configure(n.mode) }},
	}
}

// moment is a use by a client after a change.
type moment struct{ use, client, after string }

// observation is what a program sees while a change is written, and twice after it: in any mode a datagram may be
// lost or refused that has the port of another one, as the kernel chooses ports at random.
type observation struct {
	during string
	after  [2]string
}

// observe returns what each program sees in a mode.
func observe(t *testing.T, mode string) map[moment]observation {
	n := newNode(t, mode)
	programs := n.programs()
	seen := map[moment]observation{}
	for _, c := range changes() {
		c.do(n)
		during := observeAll(programs)
		n.synced()
		time.Sleep(longer)
		first, second := observeAll(programs), observeAll(programs)
		for i, p := range programs {
			seen[moment{p.use.name, p.client, c.name}] = observation{during[i], [2]string{first[i], second[i]}}
		}
	}
	return seen
}

// observeAll runs all programs at the same time.
func observeAll(programs []*program) []string {
	seen := make([]string, len(programs))
	var all sync.WaitGroup
	for i, p := range programs {
		all.Go(func() { seen[i] = p.observe() })
	}
	all.Wait()
	return seen
}

// seen are the observations in both modes.
type seen struct{ packets, sockets map[moment]observation }

// compare returns an error if what a program sees after a change differs, and the list does not have that difference,
// or if it sees something during the change that it sees neither in mode nftables nor before and after the change.
func (s seen) compare(m, before moment, known map[moment]difference) error {
	packets, sockets := s.packets[m], s.sockets[m]
	got := []difference{}
	for _, p := range packets.after {
		for _, s := range sockets.after {
			got = append(got, difference{p, s})
		}
	}
	want, listed := known[m]
	switch same := func(d difference) bool { return d.packets == d.sockets }; {
	case listed && !slices.Contains(got, want):
		return fmt.Errorf("%s; docs/ebpf.md lists another difference: %s", got, want)
	case !listed && !slices.ContainsFunc(got, same):
		return fmt.Errorf("%s; mend it, or list it in docs/ebpf.md with a reason", got)
	}
	expected := []string{packets.during}
	for _, o := range []observation{packets, sockets, s.packets[before], s.sockets[before]} {
		expected = append(expected, o.after[:]...)
	}
	answers := strings.Split(strings.Join(expected, ", "), ", ") // the change may come between two of them
	for answer := range strings.SplitSeq(sockets.during, ", ") {
		if !slices.Contains(answers, answer) && (strings.Contains(m.use, "TCP") || !isLost(answer)) {
			return fmt.Errorf("%q during the change, want one of %q", answer, answers)
		}
	}
	return nil
}

// isLost reports whether a datagram was lost, or an answer was not translated any more, as in every mode during a
// change. A socket of DNS may be destroyed.
func isLost(answer string) bool {
	backend, from, has := strings.Cut(answer, " from ")
	return has && strings.HasPrefix(backend, from) ||
		slices.Contains([]string{"no answer", "refused", "ECONNABORTED", "EDESTADDRREQ"}, answer)
}

// TestExact uses sockets in both modes, and compares.
func TestExact(t *testing.T) {
	kerneltest.NeedPrograms(t)
	var all seen
	t.Run("modes", func(t *testing.T) {
		for mode, to := range map[string]*map[moment]observation{"nftables": &all.packets, "ebpf": &all.sockets} {
			t.Run(mode, func(t *testing.T) {
				t.Parallel()
				*to = observe(t, mode)
			})
		}
	})
	known := documented(t)
	for _, u := range uses() {
		for _, client := range []string{"pod", "node", "container in the pod", "resolver of systemd"} {
			before := moment{}
			for _, c := range changes() {
				m := moment{u.name, client, c.name}
				if _, used := all.packets[m]; !used {
					continue
				}
				if err := all.compare(m, before, known); err != nil {
					t.Errorf("%s, from the %s, after %s: %v", m.use, m.client, m.after, err)
				}
				delete(known, m)
				before = m
			}
		}
	}
	for m := range known {
		t.Errorf("docs/ebpf.md lists %v, which was not tested", m)
	}
}

// difference is what a program sees in mode nftables, and in mode ebpf.
type difference struct{ packets, sockets string }

func (d difference) String() string {
	return fmt.Sprintf("%q in mode nftables, %q in mode ebpf", d.packets, d.sockets)
}

// documented returns the table of differences in docs/ebpf.md.
func documented(t *testing.T) map[moment]difference {
	t.Helper()
	text, err := os.ReadFile("../../docs/ebpf.md")
	if err != nil {
		t.Fatal(err)
	}
	const header = "| use of a socket | client | after | mode nftables | mode ebpf | reason |"
	_, rows, found := strings.Cut(string(text), header+"\n")
	if !found {
		t.Fatalf("docs/ebpf.md has no table with the header %s", header)
	}
	list := map[moment]difference{}
	for row := range strings.Lines(rows) {
		cells := strings.Split(strings.Trim(row, "| \n"), "|")
		if len(cells) != 6 {
			break
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if strings.Trim(cells[0], "-") == "" {
			continue
		}
		if cells[5] == "" {
			t.Errorf("docs/ebpf.md has no reason for %s", row)
		}
		for client := range strings.SplitSeq(cells[1], ", ") {
			for after := range strings.SplitSeq(cells[2], ", ") {
				list[moment{cells[0], client, after}] = difference{cells[3], cells[4]}
			}
		}
	}
	return list
}
