package takeover

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/linux/sockdiag"
	"github.com/sluice-proxy/sluice/internal/process"
)

// machine has processes, and maybe somebody who answers where kube-proxy does.
type machine struct {
	pids      []int               // of real kube-proxies, each with a listener
	others    []process.Process   // each has the listeners whose inode is its PID
	listeners []sockdiag.Listener // besides those of pids
	err       error
	unlisted  error             // from a listing of listeners
	answers   map[string]string // by path; nil: nobody listens
	server    string            // the Server header of its answers
	looks     int
	changes   atomic.Int32 // by the story, between two searches
}

const theirProgram = "/usr/local/bin/kube-proxy"

func (m *machine) WithSocket(inode uint64) (int, error) {
	known := slices.ContainsFunc(m.others, func(p process.Process) bool { return p.PID == int(inode) })
	if known || slices.Contains(m.pids, int(inode)) {
		return int(inode), nil
	}
	return 0, m.err
}

func (m *machine) Describe(pid int) process.Process {
	for _, p := range m.others {
		if p.PID == pid {
			return p
		}
	}
	return process.Process{PID: pid, Program: theirProgram, Names: []string{"kube-proxy"}, Admin: true}
}

func (m *machine) Listeners(context.Context) ([]sockdiag.Listener, error) {
	m.changes.Load()
	m.looks++
	list := slices.Clone(m.listeners)
	for _, pid := range m.pids {
		list = append(list, sockdiag.Listener{At: netip.MustParseAddrPort("[::]:10256"), Inode: uint64(pid)})
	}
	return list, m.unlisted
}

func (m *machine) RoundTrip(r *http.Request) (*http.Response, error) {
	m.changes.Load()
	if m.answers == nil {
		return nil, errors.New("connection refused")
	}
	if r.URL.Host != defaultAddress {
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
		"/configz": `{"kubeproxy.config.k8s.io":{"kind":"KubeProxyConfiguration","mode":"` + mode + `"}}`,
	}
}

func TestAKubeProxyIsDetectedByItsListeners(t *testing.T) {
	at := func(address string, inode uint64, uid uint32) []sockdiag.Listener {
		return []sockdiag.Listener{{At: netip.MustParseAddrPort(address), Inode: inode, UID: uid}}
	}
	health, metrics := at("[::]:10256", 50, 0), at("127.0.0.1:10249", 50, 0)
	called := func(name string) []process.Process {
		return []process.Process{{PID: 50, Program: "/bin/" + name, Names: []string{name, "comm"}, Admin: true}}
	}
	tenant, self := called("kube-proxy"), called("kube-proxy")
	tenant[0].Admin, self[0].Self = false, true
	const byListener, byAnswer = "it listens on port 10256", "it answers at 127.0.0.1:10249"
	unseen := func(mode string) *KubeProxy { return &KubeProxy{0, "", mode, byAnswer} }
	for _, c := range []struct {
		name string
		*machine
		want *KubeProxy
	}{
		{"nobody", &machine{}, nil},
		{
			"a kube-proxy",
			&machine{others: called("kube-proxy"), listeners: health, answers: speaking("ipvs")},
			&KubeProxy{50, "/bin/kube-proxy", "ipvs", byListener},
		},
		{
			"one that does not answer",
			&machine{others: called("kube-proxy"), listeners: health},
			&KubeProxy{50, "/bin/kube-proxy", "", byListener},
		},
		{"one beside Sluice, which answers", &machine{
			others: called("kube-proxy"), listeners: health,
			answers: speaking("nftables"), server: "sluice",
		}, &KubeProxy{50, "/bin/kube-proxy", "", byListener}},
		{"its name alone", &machine{others: called("kube-proxy")}, nil},
		{"its name at another port", &machine{others: called("kube-proxy"), listeners: at("0.0.0.0:80", 50, 0)}, nil},
		{"another program at its port", &machine{others: called("proxy"), listeners: health}, nil},
		{"another program that is one as well", &machine{
			others: called("k3s"), listeners: metrics,
			answers: speaking("iptables"),
		}, &KubeProxy{50, "/bin/k3s", "iptables", byAnswer}},
		{"a tenant", &machine{others: tenant, listeners: metrics, answers: speaking("iptables")}, nil},
		{"the same program as Sluice", &machine{others: self, listeners: health}, nil},
		{"out of sight", &machine{listeners: metrics, answers: speaking("iptables")}, unseen("iptables")},
		{
			"out of sight, at all addresses",
			&machine{listeners: at("[::]:10249", 1, 0), answers: speaking("iptables")},
			unseen("iptables"),
		},
		{
			"out of sight, of another user",
			&machine{listeners: at("0.0.0.0:10249", 1, 1000), answers: speaking("iptables")},
			nil,
		},
		{"out of sight, and it does not answer", &machine{listeners: health}, nil},
		{"Sluice itself", &machine{listeners: metrics, answers: speaking("nftables"), server: "sluice/1.0"}, nil},
		{"another daemon", &machine{
			listeners: metrics,
			answers:   map[string]string{"/configz": `{"kubeletconfig":{}}`},
		}, nil},
		{"not even JSON", &machine{listeners: metrics, answers: map[string]string{"/configz": `<html>`}}, nil},
		{"no mode", &machine{listeners: metrics, answers: speaking("")}, unseen("")},
		{"a mode for the terminal", &machine{listeners: metrics, answers: speaking(`\u001b[2J`)}, unseen(" [2J")},
		{
			"no processes to read",
			&machine{err: errors.New("no /proc"), listeners: metrics, answers: speaking("nftables")},
			unseen("nftables"),
		},
		{
			"no listeners to read",
			&machine{unlisted: errors.New("no netlink"), answers: speaking("nftables")},
			unseen("nftables"),
		},
	} {
		got, err := c.machine.detector().detect(t.Context())
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
	if _, err := (&machine{unlisted: errors.New("no netlink")}).detector().detect(t.Context()); err == nil {
		t.Error("an error is taken for nobody")
	}
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
	m := &machine{listeners: []sockdiag.Listener{{At: netip.MustParseAddrPort(l.Addr().String())}}}
	w.processes, w.listeners = m, m
	got, err := w.detect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&KubeProxy{0, "", "iptables", "it answers at " + l.Addr().String()}, got); diff != "" {
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
