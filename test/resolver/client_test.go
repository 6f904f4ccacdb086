//go:build linux

package resolver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/machine"
)

// resolveArg is the argument with which the test program runs as a client with the resolver of Go.
const resolveArg = "resolve-names"

// resolveNames does the same as testdata/resolve.c, by the resolver of Go.
func resolveNames(args []string) {
	network := map[string]string{"0": "ip", "4": "ip4", "6": "ip6"}[args[0]]
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // an error ends the client, too
		close(ended)
	}()
	for n := 1; ; n++ {
		for _, name := range args[2:] {
			resolveName(network, name)
		}
		if args[1] == strconv.Itoa(n) {
			return
		}
		if args[1] != "0" {
			continue
		}
		select {
		case <-ended:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func resolveName(network, name string) {
	began := time.Now()
	addrs, err := (&net.Resolver{PreferGo: true}).LookupNetIP(context.Background(), network, name)
	fmt.Print(time.Since(began).Milliseconds(), " ", name)
	if err != nil {
		fmt.Print(" ! ", err)
	}
	for _, a := range addrs {
		fmt.Print(" ", a.Unmap())
	}
	fmt.Println()
}

// question is a list of look-ups.
type question struct {
	servers []string // in resolv.conf
	family  int      // 4, 6, or 0 for both
	rounds  int      // 0: until client.end
	names   []string
}

// lookup is a line of the output of a client.
type lookup struct {
	took  time.Duration
	name  string
	addrs []netip.Addr // sorted, each once
	err   string
}

// String returns the look-up with its result.
func (l lookup) String() string {
	if l.err != "" {
		return fmt.Sprintf("%s after %v: %s", l.name, l.took, l.err)
	}
	return fmt.Sprintf("%s after %v: %v", l.name, l.took, l.addrs)
}

// client is a running client program.
type client struct {
	r    resolver
	from *lab.Host
	out  bytes.Buffer
	in   io.Closer
	wait func() error
}

// ask starts a client on a host, in its cgroup, with an /etc of its own.
func (e *env) ask(r resolver, from *lab.Host, q question) *client {
	e.Helper()
	args := append(slices.Clone(r.argv), strconv.Itoa(q.family), strconv.Itoa(q.rounds))
	cmd := exec.Command("sh", append([]string{"-c", `mount --bind "$0" /etc && exec "$@"`, e.etc(q.servers)},
		append(args, q.names...)...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	c := &client{r: r, from: from}
	cmd.Stdout, cmd.Stderr = &c.out, &c.out
	var err error
	if c.in, err = cmd.StdinPipe(); err != nil {
		e.Fatal(err)
	}
	if c.wait, err = from.StartClient(cmd); err != nil {
		e.Fatal(err)
	}
	return c
}

// attempt is the timeout in resolv.conf, of whole seconds, after which a resolver sends a query again. Musl sends it
// three times within the timeout.
func attempt() time.Duration { return machine.Scale(3 * time.Second).Round(time.Second) }

// etc returns a folder with the configuration of resolvers, to be mounted at /etc.
func (e *env) etc(servers []string) string {
	e.Helper()
	dir := e.TempDir()
	conf := fmt.Sprintf("options timeout:%.0f attempts:3\n", attempt().Seconds())
	for _, s := range servers {
		conf += "nameserver " + s + "\n"
	}
	for name, text := range map[string]string{"resolv.conf": conf, "nsswitch.conf": "hosts: dns\n", "hosts": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			e.Fatal(err)
		}
	}
	return dir
}

// end ends the client and returns its look-ups.
func (c *client) end() ([]lookup, error) {
	err := c.in.Close()
	if waited := c.wait(); waited != nil { // closes the input, too
		err = waited
	}
	if err != nil && !errors.Is(err, os.ErrClosed) {
		return nil, fmt.Errorf("%s on %s: %w: %s", c.r.name, c.from.Name(), err, &c.out)
	}
	var all []lookup
	for line := range strings.Lines(c.out.String()) {
		l, err := readLookup(strings.TrimSpace(line))
		if err != nil {
			return nil, fmt.Errorf("%s on %s: %w", c.r.name, c.from.Name(), err)
		}
		all = append(all, l)
	}
	return all, nil
}

func readLookup(line string) (l lookup, err error) {
	answer, failure, _ := strings.Cut(line, " ! ")
	words := strings.Fields(answer)
	if len(words) < 2 {
		return l, fmt.Errorf("unexpected output %q", line)
	}
	ms, err := strconv.Atoi(words[0])
	l.took, l.name, l.err = time.Duration(ms)*time.Millisecond, words[1], failure
	for _, text := range words[2:] {
		a, parsed := netip.ParseAddr(text)
		err = errors.Join(err, parsed)
		l.addrs = append(l.addrs, a)
	}
	slices.SortFunc(l.addrs, netip.Addr.Compare)
	l.addrs = slices.Compact(l.addrs)
	return l, err
}

// resolve runs a client until it has made its look-ups, and returns them.
func (e *env) resolve(r resolver, from *lab.Host, q question) []lookup {
	e.Helper()
	c := e.ask(r, from, q)
	if err := c.wait(); err != nil { // its input stays open until then
		e.Fatalf("%s on %s: %v: %s", r.name, from.Name(), err, &c.out)
	}
	list, err := c.end()
	if err != nil {
		e.Fatal(err)
	}
	if len(list) != q.rounds*len(q.names) {
		e.Fatalf("%s on %s: %d look-ups, want %d:\n%s", r.name, from.Name(), len(list), q.rounds*len(q.names), &c.out)
	}
	return list
}
