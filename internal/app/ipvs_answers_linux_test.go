package app

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/internal/text"
)

// answering is a daemon in mode ipvs with its answers.
type answering struct {
	*testing.T
	client *admin.Client
}

func (a answering) ask(path string, query url.Values, answer any) {
	a.Helper()
	if err := a.client.Get(a.Context(), path, query, answer); err != nil {
		a.Fatalf("%s: %v", path, err)
	}
}

// backends returns the rows of sluice get backends default/web.
func (a answering) backends() string {
	a.Helper()
	list, err := admin.All[inspect.Backend](a.client.Ask(a.Context(), "/backends", url.Values{"name": {"default/web"}}))
	if err != nil {
		a.Fatal(err)
	}
	var rows []string
	for _, b := range list {
		var values []string
		for _, c := range b.Rows()[0].Cells[3:8] { // from the backend to the number of connections
			values = append(values, c[1])
		}
		rows = append(rows, strings.Join(values, " "))
	}
	return strings.Join(rows, "\n")
}

// traffic returns what the kernel counts for default/web, which it does not do at once.
func (a answering) traffic() plane.Traffic {
	a.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		list, err := admin.All[inspect.Traffic](a.client.Ask(a.Context(), "/traffic", nil))
		if err != nil {
			a.Fatal(err)
		}
		if len(list) > 0 && list[0].Signals[plane.Connections] > 0 { // conntrack has the connection before IPVS counts it
			return list[0].Signals
		}
	}
	return nil
}

// drain returns how many connections the pod of default/web has after a wait, and what clients connect to.
func (a answering) drain(wait string) string {
	a.Helper()
	query := url.Values{"pod": {"10.244.1.5"}, "wait": {wait}}
	list, err := admin.All[inspect.Drain](a.client.Ask(a.Context(), "/drain", query))
	if err != nil || len(list) != 1 {
		a.Fatalf("%v, %v", list, err)
	}
	out := fmt.Sprint(list[0].Live)
	for _, f := range list[0].Flows {
		out += fmt.Sprintf(" %s > %s", f.To, f.Backend)
	}
	return out
}

// Questions about a daemon in mode ipvs: weights and connections of backends, what drains, and
// the difference, of which a drain is no part.
func TestAnswersInModeIPVS(t *testing.T) {
	netns := kerneltest.Namespace(t)
	kerneltest.NeedIPVS(t)
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	config := filepath.Join(t.TempDir(), "config.yaml")
	write(t, config, quiet+"ipvs: {scheduler: wrr}\n")
	both := weighted("", "10.244.1.5=3, 10.244.1.6=0, 10.244.1.6=1")
	path := manifests(t, both)
	o, _ := daemonOptions(t, config, "--manifests="+path, "--proxy-mode=ipvs")
	o.NetNS = netns
	pod := kerneltest.Namespace(t)
	commands(t, netns, "ip link add pod type veth peer name eth0",
		fmt.Sprintf("ip link set eth0 netns /proc/%d/fd/%d", os.Getpid(), pod),
		"ip link set pod up", "ip addr add 10.244.1.1/24 dev pod")
	commands(t, pod, "ip link set eth0 up", "ip addr add 10.244.1.5/24 dev eth0", "ip route add default via 10.244.1.1")
	serveTCP(t, pod, "10.244.1.5:8080")
	r := run(t, o)
	r.sync()
	a := answering{t, admin.Dial(admin.Options{NetNS: netns})}
	expect := func(want string) {
		t.Helper()
		if got := a.backends(); got != want {
			t.Errorf("backends:\n%s\nwant\n%s", got, want)
		}
		if d, err := admin.All[inspect.Step](a.client.Ask(t.Context(), "/diff", nil)); err != nil || len(d) != 0 {
			t.Errorf("difference: %s, %v", d, err)
		}
	}
	expect("10.244.1.5:8080 wrr 3 0 0\n10.244.1.6:8080 wrr 0 0 0")
	var status inspect.Status
	if a.ask("/status", nil, &status); len(status.Problems) != 1 || status.Problems[0].Value != "10.244.1.6=1" ||
		status.Mode.Name != "ipvs" {
		t.Errorf("status: mode %s, problems %+v", status.Mode.Name, status.Problems)
	}
	var answer explain.Answer
	a.ask("/explain", url.Values{"source": {"node"}, "destination": {"10.96.0.80:80"}}, &answer)
	if text := text.Printed(answer); !strings.Contains(text, "3/3 10.244.1.5:8080") ||
		!strings.Contains(text, "-> virtual server tcp 10.96.0.80:80\n") {
		t.Errorf("explain:\n%s", text)
	}
	const mode = `sluice_mode_info{configured="ipvs",mode="ipvs"`
	if _, body := get(t, netns, "127.0.0.1:10249/metrics"); !strings.Contains(body, mode) ||
		!strings.Contains(body, "sluice_services 1\n") {
		t.Errorf("metrics:\n%s", body)
	}

	conn := connect(t, netns, "10.96.0.80:80")
	expect("10.244.1.5:8080 wrr 3 1 0\n10.244.1.6:8080 wrr 0 0 0")
	if n := a.traffic(); n[plane.Connections] != 1 || n[plane.Live] != 1 || n[plane.Received] == 0 || len(n) != 6 {
		t.Errorf("traffic: %v", n)
	}
	if got, want := a.drain("1s"), "1 10.96.0.80:80 > 10.244.1.5:8080"; got != want {
		t.Errorf("the pod still has %s, want %s", got, want)
	}
	without := strings.Replace(both, ", {addresses: [10.244.1.5]}", "", 1)
	if err := os.WriteFile(path, []byte(without), 0o600); err != nil {
		t.Fatal(err)
	}
	r.sync()
	expect("10.244.1.6:8080 wrr 0 0 0\n10.244.1.5:8080 wrr 0 1 0")
	r.drain()
	_ = conn.Close()
	if got := a.drain("1m"); got != "0" {
		t.Errorf("after the client has closed, the pod still has %s", got)
	}
	gone := ""
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline) && gone != "10.244.1.6:8080 wrr 0 0 0"; {
		gone = a.backends()
		time.Sleep(time.Second)
	}
	expect("10.244.1.6:8080 wrr 0 0 0")
}

// serveTCP accepts connections and keeps them until clients close them.
func serveTCP(t *testing.T, netns int, at string) {
	t.Helper()
	kerneltest.Do(t, netns, func() error {
		l, err := net.Listen("tcp", at)
		if err != nil {
			return err
		}
		kerneltest.Serve(t, l, func(c net.Conn) {
			t.Cleanup(func() { _ = c.Close() })
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		})
		return nil
	})
}

func connect(t *testing.T, netns int, to string) net.Conn {
	t.Helper()
	var c net.Conn
	kerneltest.Do(t, netns, func() (err error) {
		c, err = net.DialTimeout("tcp", to, 30*time.Second)
		return err
	})
	return c
}
