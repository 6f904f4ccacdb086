package takeover

import (
	stdcmp "cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/kernel/process"
	"github.com/sluice-proxy/sluice/internal/kernel/socket"
)

// machine has processes called kube-proxy, and maybe somebody who answers where
// kube-proxy does.
type machine struct {
	pids      []int             // of real kube-proxies, each with a listener
	called    []process.Process // of the name or not
	listeners []socket.Listener // besides those of pids
	err       error
	answers   map[string]string // by path; nil: nobody listens
	at        string            // where; the default address if empty
	server    string            // what it says it is
	looks     int
}

const theirProgram = "/usr/local/bin/kube-proxy"

func (m *machine) Named(_ context.Context, name string) ([]process.Process, error) {
	m.looks++
	if name != "kube-proxy" {
		return nil, fmt.Errorf("asked for %s", name)
	}
	list := slices.Clone(m.called)
	for _, pid := range m.pids {
		list = append(list, process.Process{PID: pid, Program: theirProgram, Admin: true, Sockets: []uint64{uint64(pid)}})
	}
	return list, m.err
}

func (m *machine) WithSocket(inode uint64) (int, error) {
	for _, p := range m.called {
		if slices.Contains(p.Sockets, inode) {
			return p.PID, nil
		}
	}
	return 0, m.err
}

func (m *machine) Describe(pid int) process.Process {
	return m.called[slices.IndexFunc(m.called, func(p process.Process) bool { return p.PID == pid })]
}

func (m *machine) Listeners(context.Context) ([]socket.Listener, error) {
	list := slices.Clone(m.listeners)
	for _, pid := range m.pids {
		list = append(list, socket.Listener{At: netip.MustParseAddrPort("[::]:10256"), Inode: uint64(pid)})
	}
	return list, m.err
}

func (m *machine) RoundTrip(r *http.Request) (*http.Response, error) {
	if m.answers == nil {
		return nil, errors.New("connection refused")
	}
	if r.URL.Host != stdcmp.Or(m.at, defaultAddress) {
		return nil, errors.New("connection refused")
	}
	body, ok := m.answers[r.URL.Path]
	answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
	if !ok {
		answer.StatusCode = http.StatusNotFound
	}
	if m.server != "" {
		answer.Header.Set("Server", m.server)
	}
	return answer, nil
}

func (m *machine) detector() *detector {
	return &detector{processes: m, listeners: m, client: &http.Client{Transport: m}, address: defaultAddress}
}

// silent is a watch on a machine without a kube-proxy.
func silent() *detector { return (&machine{}).detector() }

// speaking are the answers of a kube-proxy.
func speaking(mode string) map[string]string {
	return map[string]string{
		"/configz":   `{"kubeproxy.config.k8s.io":{"kind":"KubeProxyConfiguration","mode":"` + mode + `"}}`,
		"/proxyMode": mode,
	}
}

func TestAKubeProxyIsDetectedByItsProcessOrItsHTTPServer(t *testing.T) {
	const byListener, byAnswer = "it listens on port 10256", "it answers at 127.0.0.1:10249"
	seen := func(pid int, mode string) *KubeProxy { return &KubeProxy{pid, theirProgram, mode, byListener, true, 0} }
	unseen := func(mode string) *KubeProxy { return &KubeProxy{0, "", mode, byAnswer, true, 0} }
	for _, c := range []struct {
		name string
		machine
		want *KubeProxy
	}{
		{"nobody", machine{}, nil},
		{"process that answers", machine{pids: []int{7, 9}, answers: speaking("ipvs")}, seen(7, "ipvs")},
		{"process that does not answer", machine{pids: []int{7}}, seen(7, "")},
		{"process out of sight", machine{answers: speaking("iptables")}, unseen("iptables")},
		{"Sluice itself", machine{answers: speaking("nftables"), server: "sluice/1.0"}, nil},
		{"kube-proxy, and Sluice answers", machine{pids: []int{7}, answers: speaking("nftables"), server: "sluice"}, seen(7, "")},
		{"another daemon", machine{answers: map[string]string{"/configz": `{"kubeletconfig":{}}`, "/proxyMode": "x"}}, nil},
		{"not even JSON", machine{answers: map[string]string{"/configz": `<html>`}}, nil},
		{"no mode", machine{answers: map[string]string{"/configz": speaking("")["/configz"]}}, unseen("")},
		{"a mode for the terminal", machine{answers: map[string]string{"/configz": speaking("")["/configz"], "/proxyMode": "\x1b[2J\n"}}, unseen(" [2J")},
	} {
		got, err := c.machine.detector().detect(t.Context())
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
	blind := machine{err: errors.New("no /proc"), answers: speaking("nftables")}
	if got, err := blind.detector().detect(t.Context()); got == nil || got.PID != 0 || !got.Confirmed || err != nil {
		t.Errorf("where processes cannot be read: %v, %v", got, err)
	}
	if _, err := (&machine{err: errors.New("no /proc")}).detector().detect(t.Context()); err == nil {
		t.Error("an error is taken for nobody")
	}
}

// The name alone proves nothing: what a process may do and does decides.
func TestAProcessIsIdentifiedByItsFileAndItsServer(t *testing.T) {
	at := netip.MustParseAddrPort
	tenant := process.Process{PID: 5, Program: "/bin/tenant", Sockets: []uint64{50}}
	renamed := process.Process{PID: 6, Program: "/tmp/kube-proxy", Admin: true, Age: time.Hour, Sockets: []uint64{60}}
	embedded := process.Process{PID: 8, Program: "/usr/bin/k3s", Admin: true, Sockets: []uint64{80}}
	maybe := &KubeProxy{6, "/tmp/kube-proxy", "", "a process of this name", false, time.Hour}
	for _, c := range []struct {
		name string
		machine
		want *KubeProxy
	}{
		{"a tenant of this name", machine{called: []process.Process{tenant}}, nil},
		{
			"a tenant that listens on the port and answers",
			machine{
				called: []process.Process{tenant}, answers: speaking("iptables"),
				listeners: []socket.Listener{{At: at("127.0.0.1:10249"), Inode: 50}, {At: at("0.0.0.0:10256"), Inode: 50}},
			},
			nil,
		},
		{
			"a user out of sight that answers",
			machine{answers: speaking("iptables"), listeners: []socket.Listener{{At: at("0.0.0.0:10249"), Inode: 1, UID: 1000}}},
			nil,
		},
		{
			"root out of sight that answers",
			machine{answers: speaking("iptables"), listeners: []socket.Listener{{At: at("[::]:10249"), Inode: 1}}},
			&KubeProxy{0, "", "iptables", "it answers at 127.0.0.1:10249", true, 0},
		},
		{"a renamed process of root", machine{called: []process.Process{renamed}}, maybe},
		{
			"one that listens elsewhere",
			machine{called: []process.Process{renamed}, listeners: []socket.Listener{{At: at("0.0.0.0:80"), Inode: 60}}},
			maybe,
		},
		{
			"one whose port another process has",
			machine{called: []process.Process{renamed}, listeners: []socket.Listener{{At: at("0.0.0.0:10256"), Inode: 61}}},
			maybe,
		},
		{
			"one that answers at a port of its own",
			machine{
				called: []process.Process{renamed}, answers: speaking("ipvs"), at: "127.0.0.1:20249",
				listeners: []socket.Listener{{At: at("0.0.0.0:80"), Inode: 60}, {At: at("0.0.0.0:20249"), Inode: 60}},
			},
			&KubeProxy{6, "/tmp/kube-proxy", "ipvs", "it answers at 127.0.0.1:20249", true, time.Hour},
		},
		{
			"a program of another name that is a kube-proxy as well",
			machine{
				called: []process.Process{embedded}, answers: speaking("iptables"),
				listeners: []socket.Listener{{At: at("127.0.0.1:10249"), Inode: 80}},
			},
			&KubeProxy{8, "/usr/bin/k3s", "iptables", "it answers at 127.0.0.1:10249", true, 0},
		},
	} {
		// The fake has all by name; by name the embedded one is not found.
		w := c.machine.detector()
		w.processes = byName{&c.machine}
		got, err := w.detect(t.Context())
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// byName leaves out programs of another name.
type byName struct{ *machine }

func (b byName) Named(ctx context.Context, name string) ([]process.Process, error) {
	list, err := b.machine.Named(ctx, name)
	return slices.DeleteFunc(list, func(p process.Process) bool { return p.Program == "/usr/bin/k3s" }), err
}

func TestTheDiagnosticsAddressOfTheOptionsIsUsed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, speaking("iptables")[r.URL.Path])
	})}
	defer func() { _ = server.Close() }()
	go func() { _ = server.Serve(l) }()
	w := newDetector(Options{Address: l.Addr().String()})
	w.processes, w.listeners = &machine{}, &machine{}
	got, err := w.detect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&KubeProxy{0, "", "iptables", "it answers at " + l.Addr().String(), true, 0}, got); diff != "" {
		t.Errorf("noticed (-want +got):\n%s", diff)
	}
}

func TestARunningKubeProxyIsNamed(t *testing.T) {
	for want, r := range map[string]KubeProxy{
		"kube-proxy":                          {},
		"kube-proxy (pid 7)":                  {PID: 7},
		"kube-proxy (pid 7) in mode iptables": {PID: 7, Mode: "iptables"},
		"kube-proxy (pid 7, /bin/x [2J)":      {PID: 7, Program: "/bin/x\x1b[2J"},
		"kube-proxy in mode ipvs":             {Mode: "ipvs"},
	} {
		compare(t, "name", want, r.String())
	}
}
