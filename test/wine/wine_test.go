//go:build linux

package wine_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/wine"
)

func TestMain(m *testing.M) { wine.Main(m, apiserver.Assets) }

const module = "github.com/sluice-proxy/sluice/"

// TestWindows runs all tests on one Windows, as far as Wine is one. The last has no HNS, and leaves changed libraries.
func TestWindows(t *testing.T) {
	t.Setenv("SLUICE_TEST_HNS", "1") // for the access to HNS
	p := wine.New(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *wine.Prefix)
	}{
		{"access to HNS", testAccessToHNS},
		{"service", testService},
		{"kernelspace", testKernelspace},
		{"documents of Services", testDocumentsOfServices},
		{"userspace", testUserspace},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, p.For(t)) })
	}
}

// testUserspace runs the program in mode userspace.
func testUserspace(t *testing.T, p *wine.Prefix) {
	sluice := p.Build(module + "cmd/sluice")
	t.Run("version", func(t *testing.T) {
		r := p.Run(sluice, "version")
		if r.Code != 0 || !strings.Contains(r.Stdout, "windows/amd64") {
			t.Errorf("%+v", r)
		}
	})
	t.Run("plan", func(t *testing.T) {
		examples, err := filepath.Abs("../../examples")
		if err != nil {
			t.Fatal(err)
		}
		r := p.Run(sluice, append([]string{"plan", "-f", wine.Path(examples)}, loopback()...)...)
		if r.Code != 0 || !strings.Contains(r.Stdout, "default/web") {
			t.Errorf("%+v", r)
		}
	})
	t.Run("bad input", func(t *testing.T) { testBadInput(t, p, sluice) })
	t.Run("daemon", func(t *testing.T) { testDaemon(t, p, sluice) })
	t.Run("addresses", func(t *testing.T) { testAddresses(t, p, sluice) })
	t.Run("default mode", func(t *testing.T) { testDefaultMode(t, p, sluice) })
	t.Run("access list", func(t *testing.T) {
		r := p.Run(p.BuildTests(module+"internal/admin"), "-test.run=TestAccess|TestThePipe|TestOneHoldsTheMutex", "-test.v")
		if r.Code != 0 || !strings.Contains(r.Stdout, "--- PASS: TestAccess") {
			t.Errorf("status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
	})
	t.Run("failing service", func(t *testing.T) { testFailingService(t, p, sluice) })
}

// One daemon runs for a user and answers commands. When it is killed, the next may run.
func testDaemon(t *testing.T, p *wine.Prefix, sluice string) {
	service := filepath.Join(t.TempDir(), "service.yaml")
	if err := os.WriteFile(service, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	daemon := append([]string{"--manifests", wine.Path(service)}, loopback()...)
	answers := func() { // within the time that status waits for the daemon
		t.Helper()
		var last wine.Result
		for end := time.Now().Add(patience); time.Now().Before(end); {
			if last = p.Run(sluice, "get", "services"); last.Code == 0 && strings.Contains(last.Stdout, "web") {
				return
			}
		}
		t.Fatalf("the daemon does not answer: %+v", last)
	}
	for range 2 {
		first := p.Start(t.Output(), sluice, daemon...)
		answers()
		if r := p.Run(sluice, daemon...); r.Code != 1 || !strings.Contains(r.Stderr, "already serves this user") {
			t.Errorf("a second daemon: %+v", r)
		}
		if r := p.Run(sluice, "status"); r.Code != 0 || !strings.Contains(r.Stdout, "healthy") {
			t.Errorf("status: %+v", r)
		}
		if r := p.Run(sluice, "diff"); r.Code != 0 {
			t.Errorf("diff: %+v", r)
		}
		first.Kill()
		if r := p.Run(sluice, "status"); r.Code != 2 {
			t.Errorf("status of a killed daemon: %+v", r)
		}
	}
}

// Without an HNS the default is mode userspace, and the status says why.
func testDefaultMode(t *testing.T, p *wine.Prefix, sluice string) {
	d := p.Start(t.Output(), sluice, "--manifests", writeServices(t, t.TempDir(), []string{"10.96.0.23"}))
	defer d.Kill()
	var last wine.Result
	for end := time.Now().Add(patience); time.Now().Before(end); {
		last = p.Run(sluice, "status")
		if strings.Contains(last.Stdout, "userspace") &&
			strings.Contains(last.Stdout, "the Host Networking Service (HNS) is not installed") {
			return
		}
	}
	t.Errorf("status: %+v", last)
}

// patience is for a machine that is busy.
const patience = 30 * time.Second

const manifest = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  clusterIP: 10.96.0.20
  clusterIPs: [10.96.0.20]
  ipFamilies: [IPv4]
  ports: [{port: 80, targetPort: 8080, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080, protocol: TCP}]
endpoints: [{addresses: [127.0.0.1], conditions: {ready: true}}]
`

func loopback() []string { return []string{"--proxy-mode=userspace", "--bind=loopback"} }

func testBadInput(t *testing.T, p *wine.Prefix, sluice string) {
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("kind: [Service\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args   []string
		code   int
		stderr string
	}{
		"no such flag": {[]string{"--no-such-flag"}, 1, "no-such-flag"},
		"no such file": {
			append([]string{"plan", "-f", wine.Path(bad + "-missing")}, loopback()...),
			1, "bad.yaml-missing",
		},
		"a broken file":    {append([]string{"plan", "--strict", "-f", wine.Path(bad)}, loopback()...), 1, "bad.yaml"},
		"a mode of Linux":  {[]string{"plan", "--mode=nftables", "-f", wine.Path(bad)}, 1, "userspace"},
		"nobody to answer": {[]string{"status"}, 2, "no Sluice of this user is running"},
		"no HNS": {
			[]string{"--proxy-mode=kernelspace", "--network-name=l2", "--manifests", wine.Path(bad)},
			1,
			"the Host Networking Service (HNS) is not installed",
		},
		"no such bind": {
			[]string{"plan", "--mode=userspace", "--bind=sockets", "-f", wine.Path(bad)},
			1, "rules or loopback",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if r := p.Run(sluice, tc.args...); r.Code != tc.code || !strings.Contains(r.Stderr, tc.stderr) {
				t.Errorf("%+v, want status %d and %q on standard error", r, tc.code, tc.stderr)
			}
		})
	}
}
