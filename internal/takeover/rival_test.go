package takeover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// machine has processes called kube-proxy, and maybe somebody who answers where
// kube-proxy does.
type machine struct {
	pids    []int
	err     error
	answers map[string]string // by path; nil: nobody listens
	server  string            // what it says it is
	looks   int
}

func (m *machine) Named(_ context.Context, name string) ([]int, error) {
	m.looks++
	if name != "kube-proxy" {
		return nil, fmt.Errorf("asked for %s", name)
	}
	return m.pids, m.err
}

func (m *machine) RoundTrip(r *http.Request) (*http.Response, error) {
	if m.answers == nil {
		return nil, errors.New("connection refused")
	}
	if r.URL.Host != defaultAddress {
		return nil, fmt.Errorf("asked %s", r.URL.Host)
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

func (m *machine) watch() *watch {
	return &watch{processes: m, client: &http.Client{Transport: m}, address: defaultAddress}
}

// silent is a watch on a machine without a kube-proxy.
func silent() *watch { return (&machine{}).watch() }

// speaking are the answers of a kube-proxy.
func speaking(mode string) map[string]string {
	return map[string]string{
		"/configz":   `{"kubeproxy.config.k8s.io":{"kind":"KubeProxyConfiguration","mode":"` + mode + `"}}`,
		"/proxyMode": mode,
	}
}

func TestAKubeProxyIsNoticedByItsProcessOrItsAnswers(t *testing.T) {
	byProcess, byAnswer := "a process of this name", "it answers at 127.0.0.1:10249"
	for _, c := range []struct {
		name string
		machine
		want *Rival
	}{
		{"nobody", machine{}, nil},
		{"process that answers", machine{pids: []int{7, 9}, answers: speaking("ipvs")}, &Rival{7, "ipvs", byProcess}},
		{"process that does not answer", machine{pids: []int{7}}, &Rival{7, "", byProcess}},
		{"process out of sight", machine{answers: speaking("iptables")}, &Rival{0, "iptables", byAnswer}},
		{"processes cannot be read", machine{err: errors.New("no /proc"), answers: speaking("nftables")}, &Rival{0, "nftables", byAnswer}},
		{"Sluice itself", machine{answers: speaking("nftables"), server: "sluice/1.0"}, nil},
		{"kube-proxy, and Sluice answers", machine{pids: []int{7}, answers: speaking("nftables"), server: "sluice"}, &Rival{7, "", byProcess}},
		{"another daemon", machine{answers: map[string]string{"/configz": `{"kubeletconfig":{}}`, "/proxyMode": "x"}}, nil},
		{"not even JSON", machine{answers: map[string]string{"/configz": `<html>`}}, nil},
		{"no mode", machine{answers: map[string]string{"/configz": speaking("")["/configz"]}}, &Rival{0, "", byAnswer}},
	} {
		got, err := c.machine.watch().look(t.Context())
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
	if _, err := (&machine{err: errors.New("no /proc")}).watch().look(t.Context()); err == nil {
		t.Error("what cannot be told is taken for nobody")
	}
}

func TestARealServerIsAskedWhereTheOptionsSay(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, speaking("iptables")[r.URL.Path])
	})}
	defer func() { _ = server.Close() }()
	go func() { _ = server.Serve(l) }()
	w := newWatch(Options{Address: l.Addr().String()})
	w.processes = &machine{}
	got, err := w.look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&Rival{0, "iptables", "it answers at " + l.Addr().String()}, got); diff != "" {
		t.Errorf("noticed (-want +got):\n%s", diff)
	}
}

func TestARivalIsNamed(t *testing.T) {
	for want, r := range map[string]Rival{
		"kube-proxy":                          {},
		"kube-proxy (pid 7)":                  {PID: 7},
		"kube-proxy (pid 7) in mode iptables": {PID: 7, Mode: "iptables"},
		"kube-proxy in mode ipvs":             {Mode: "ipvs"},
	} {
		compare(t, "name", want, r.String())
	}
}
