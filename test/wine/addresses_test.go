//go:build linux

package wine_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/wine"
)

// Addresses of Services are on an interface while the daemon runs, as a service of Windows too. The next start
// removes addresses of a killed daemon, and addresses of the host stay.
func testAddresses(t *testing.T, p *wine.Prefix, sluice string) {
	p.ServeAddresses()
	// Addresses of backends, and one that a Service has too.
	for _, addr := range []string{"192.0.2.10/32", "fd00::10/128", "10.96.0.22/32"} {
		addAddress(t, addr)
	}
	serveBackend(t, "192.0.2.10:8080")
	serveBackend(t, "[fd00::10]:8080")
	folder := t.TempDir()
	manifest := func(addrs ...string) string { return writeServices(t, folder, addrs) }

	killed := p.Start(t.Output(), sluice, "--manifests", manifest("10.96.0.20", "10.96.0.22", "fd00:10:96::20"),
		"--proxy-mode=userspace")
	answers(t, "10.96.0.20", "10.96.0.22", "fd00:10:96::20")
	killed.Kill()
	hasAddresses(t, "10.96.0.20", "10.96.0.22", "fd00:10:96::20")

	log := filepath.Join(folder, "log.txt")
	install(t, p, wine.Path(sluice)+" --windows-service --proxy-mode userspace --log-file "+wine.Path(log)+
		" --manifests "+manifest("10.96.0.21", "10.96.0.22"))
	control(t, p, "start")
	state(t, p, "RUNNING")
	answers(t, "10.96.0.21", "10.96.0.22")
	hasAddresses(t, "10.96.0.21", "10.96.0.22")
	script := filepath.Join(folder, "cleanup.bat")
	text := "@set LocalAppData=C:\\users\\operator\r\n@" + wine.Path(sluice) + " --cleanup\r\n@exit %errorlevel%\r\n"
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := p.Run("cmd", "/c", wine.Path(script)) // as a user with another lock
	if r.Code != 1 || !strings.Contains(r.Stderr, "already serves this machine") {
		t.Errorf("--cleanup of another user: %+v", r)
	}
	r = p.Run(sluice, "--manifests", wine.Path(folder), "--proxy-mode=userspace")
	if r.Code != 1 || !strings.Contains(r.Stderr, "already serves this machine") {
		t.Errorf("a second daemon: %+v", r)
	}
	if r := p.Run(sluice, "get", "services"); r.Code != 0 || !strings.Contains(r.Stdout, "10.96.0.21") {
		t.Errorf("get services: %+v", r)
	}
	if r := p.Run(sluice, "status"); r.Code != 0 || !strings.Contains(r.Stdout, "healthy") {
		t.Errorf("status: %+v", r)
	}
	hasAddresses(t, "10.96.0.21", "10.96.0.22")
	control(t, p, "stop")
	if text := state(t, p, "STOPPED"); !strings.Contains(text, "WIN32_EXIT_CODE    : 0 ") {
		t.Errorf("after a graceful end: %s", text)
	}
	hasAddresses(t, "10.96.0.22")
	if text, err := os.ReadFile(log); err != nil || !strings.Contains(string(text), "msg=\"Stopped; ") {
		t.Errorf("the log has %s, %v", text, err)
	}
	testPolicies(t, p, sluice)
}

// The package for services passes its own tests.
func testService(t *testing.T, p *wine.Prefix) {
	if r := p.Run(p.BuildTests(module + "internal/windows/service")); r.Code != 0 {
		t.Errorf("status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
}

// A service that cannot start ends with an exit code, and the error is in its log. In a terminal there is
// no service manager.
func testFailingService(t *testing.T, p *wine.Prefix, sluice string) {
	log := filepath.Join(t.TempDir(), "log.txt")
	for name, tc := range map[string]struct{ args, logged string }{
		"no such folder": {" --manifests Z:\\missing --log-file " + wine.Path(log), "missing"},
		"a bad flag":     {" --manifests Z:\\missing --healthz-bind-address=nowhere", ""},
	} {
		t.Run(name, func(t *testing.T) {
			install(t, p, wine.Path(sluice)+" --windows-service --proxy-mode userspace --bind loopback"+tc.args)
			p.Run("sc", "start", "kube-proxy") // it may have failed before sc asks for its state
			text := state(t, p, "STOPPED")
			if !strings.Contains(text, "WIN32_EXIT_CODE    : 1066 ") || !strings.Contains(text, "SERVICE_EXIT_CODE  : 1 ") {
				t.Errorf("after a failure: %s", text)
			}
			if tc.logged == "" {
				return
			}
			if text, err := os.ReadFile(log); err != nil || !strings.Contains(string(text), tc.logged) {
				t.Errorf("the log has %s, %v", text, err)
			}
		})
	}
	r := p.Run(sluice, append([]string{"--windows-service", "--manifests", "Z:\\"}, loopback()...)...)
	if r.Code != 1 || !strings.Contains(r.Stderr, "the service manager of Windows did not start this process") {
		t.Errorf("in a terminal: %+v", r)
	}
}

// install installs a service until the end of the test.
func install(t *testing.T, p *wine.Prefix, command string) {
	t.Helper()
	if r := p.Run("sc", "create", "kube-proxy", "binPath=", command); r.Code != 0 {
		t.Fatalf("sc create: %+v", r)
	}
	t.Cleanup(func() {
		if r := p.Run("sc", "delete", "kube-proxy"); r.Code != 0 {
			t.Errorf("sc delete: %+v", r)
		}
	})
}

func control(t *testing.T, p *wine.Prefix, verb string) {
	t.Helper()
	if r := p.Run("sc", verb, "kube-proxy"); r.Code != 0 {
		t.Fatalf("sc %s: %+v", verb, r)
	}
}

// state waits until the service has a state, and returns the output of sc.
func state(t *testing.T, p *wine.Prefix, want string) string {
	t.Helper()
	var last wine.Result
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if last = p.Run("sc", "query", "kube-proxy"); strings.Contains(last.Stdout, want) {
			return last.Stdout
		}
	}
	t.Fatalf("the service is not %s: %+v", want, last)
	return ""
}

func ip(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// addAddress adds an address to this host until the end of the test.
func addAddress(t *testing.T, addr string) {
	t.Helper()
	args := []string{"address", "replace", addr, "dev", "lo"}
	if strings.Contains(addr, ":") {
		args = append(args, "nodad") // else nothing can listen there at once
	}
	ip(t, args...)
	t.Cleanup(func() {
		if err := exec.Command("ip", "address", "delete", addr, "dev", "lo").Run(); err != nil {
			t.Errorf("ip address delete %s: %v", addr, err)
		}
	})
}

// hasAddresses waits until this host has these addresses of Services, and no others.
func hasAddresses(t *testing.T, want ...string) {
	t.Helper()
	got := serviceAddresses(t)
	for deadline := time.Now().Add(time.Minute); !slices.Equal(got, want) && time.Now().Before(deadline); {
		time.Sleep(100 * time.Millisecond)
		got = serviceAddresses(t)
	}
	if !slices.Equal(got, want) {
		t.Errorf("this host has %v, want %v", got, want)
	}
}

func serviceAddresses(t *testing.T) []string {
	t.Helper()
	var out []string
	for field := range strings.FieldsSeq(ip(t, "-brief", "address", "show", "dev", "lo")) {
		addr, _, _ := strings.Cut(field, "/")
		if strings.HasPrefix(addr, "10.96.") || strings.HasPrefix(addr, "fd00:10:96:") {
			out = append(out, addr)
		}
	}
	slices.Sort(out)
	return out
}

func serveBackend(t *testing.T, at string) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "backend")
	}))
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
}

// answers waits until the backend answers at port 80 of addresses.
func answers(t *testing.T, addrs ...string) {
	t.Helper()
	for _, addr := range addrs {
		var err error
		for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if err = get(t, addr); err == nil {
				break
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func get(t *testing.T, addr string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(addr, "80"), http.NoBody)
	if err != nil {
		return err
	}
	r.Close = true
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

// writeServices writes a Service for each address, and returns the name that the file has on Windows.
func writeServices(t *testing.T, folder string, addrs []string) string {
	t.Helper()
	var b strings.Builder
	for _, addr := range addrs {
		name := "web-" + strings.NewReplacer(".", "-", ":", "-").Replace(addr)
		family, backend := "IPv4", "192.0.2.10"
		if strings.Contains(addr, ":") {
			family, backend = "IPv6", "fd00::10"
		}
		b.WriteString(strings.NewReplacer("NAME", name, "ADDR", addr, "FAMILY", family, "BACKEND", backend).Replace(service))
	}
	file := filepath.Join(folder, addrs[0]+".yaml")
	file = strings.ReplaceAll(file, ":", "-")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return wine.Path(file)
}

const service = `---
apiVersion: v1
kind: Service
metadata: {name: NAME, namespace: default}
spec:
  clusterIP: ADDR
  clusterIPs: ["ADDR"]
  ipFamilies: [FAMILY]
  ports: [{port: 80, targetPort: 8080, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: NAME, namespace: default, labels: {kubernetes.io/service-name: NAME}}
addressType: FAMILY
ports: [{name: "", port: 8080, protocol: TCP}]
endpoints: [{addresses: ["BACKEND"], conditions: {ready: true}}]
`
