//go:build linux

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// Names of the proxies.
const (
	direct    = "direct"
	nftables  = "nftables"
	haproxy   = "haproxy"
	userspace = "userspace"       // at loopback addresses
	withRules = "userspace-rules" // behind the rules of the mode
)

func proxyNames() []string { return []string{direct, nftables, haproxy, userspace, withRules} }

// planes are the contenders that are compared with HAProxy.
func planes() []string { return []string{userspace, withRules} }

// Ports of the backend, and of the Service and of HAProxy.
const (
	echoPort, sourcePort     = 700, 701
	servedEcho, servedSource = 800, 801
)

// clusterIP is the address of the Service.
const clusterIP = "10.96.0.1"

// haproxySpare is how many connections HAProxy takes beyond the kept ones.
const haproxySpare = 500

// startLimit is how long a process may take until it serves.
const startLimit = 20 * time.Second

// contender is a backend and the proxy in front of it, on a host of its own.
type contender struct {
	name    string
	version string // "" for Sluice, which is this tree
	host    *lab.Host
	proxy   *harness.Process        // nil for direct connections
	at      map[kind]netip.AddrPort // where clients connect to
}

// start starts the chosen proxies. HAProxy is left out if the system has none.
func start(t lab.T, o options) ([]*contender, error) {
	if o.sluice == "" && slices.ContainsFunc(o.proxies, func(name string) bool {
		return name != direct && name != haproxy
	}) {
		var err error
		if o.sluice, err = harness.Program(); err != nil {
			return nil, err
		}
	}
	l := lab.New(t, lab.Options{})
	dir, err := os.MkdirTemp("/run", "relay-")
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var list []*contender
	for i, name := range proxyNames() {
		if !slices.Contains(o.proxies, name) {
			continue
		}
		if name == haproxy {
			given := o.haproxy
			if o.haproxy, err = findHAProxy(given); err != nil && given != "" {
				return nil, err
			}
			if err != nil {
				fmt.Fprintf(os.Stderr,
					"relay: HAProxy is not measured: %v; install Debian's package haproxy, or use -haproxy PATH\n", err)
				continue
			}
		}
		c := &contender{name: name, host: l.Node(name, fmt.Sprintf("192.168.0.%d", 10+i))}
		c.host.Sysctl("net/ipv4/ip_local_port_range", cmp.Or(o.ports, "2000 65000"))
		if o.ports != "" {
			c.host.Sysctl("net/ipv4/tcp_tw_reuse", "2") // the default of Linux; the value of test/lab hides the limit by ports
		}
		if err := c.start(o, filepath.Join(dir, name)); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		list = append(list, c)
	}
	return list, nil
}

// findHAProxy returns the path of HAProxy. The folder of system programs need not be in PATH.
func findHAProxy(path string) (string, error) {
	if path != "" {
		return exec.LookPath(path)
	}
	path, err := exec.LookPath("haproxy")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/haproxy")
	}
	return path, err
}

// start starts the backend and the proxy, and waits until the backend answers through it.
func (c *contender) start(o options, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	cmd, err := roleCommand(roleBackend, backend{
		Echo: c.backend(echoPort).String(), Source: c.backend(sourcePort).String(),
	})
	if err != nil {
		return err
	}
	server, err := harness.Start(c.host, cmd)
	if err != nil {
		return err
	}
	if err := c.await(server, c.backend(echoPort)); err != nil {
		return err
	}
	c.at, err = map[string]func(options, string) (map[kind]netip.AddrPort, error){
		direct: c.startNothing, nftables: c.startNftables, haproxy: c.startHAProxy, userspace: c.startUserspace,
		withRules: c.startWithRules,
	}[c.name](o, dir)
	if err != nil {
		return err
	}
	return c.await(cmp.Or(c.proxy, server), c.at[requests])
}

// backend returns the address of the backend at a port.
func (c *contender) backend(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(c.host.Addr4(), port)
}

// await waits for an answer of the backend at an address.
func (c *contender) await(p *harness.Process, at netip.AddrPort) error {
	return p.Until(startLimit, "an answer from "+at.String(), func() error {
		return c.host.Do(func() error {
			conn, err := net.DialTimeout("tcp", at.String(), time.Second)
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			return errors.Join(conn.SetDeadline(time.Now().Add(time.Second)), exchange(conn, make([]byte, requestSize)))
		})
	})
}

// targets returns where clients find two addresses.
func targets(echo, source netip.AddrPort) map[kind]netip.AddrPort {
	return map[kind]netip.AddrPort{requests: echo, connects: echo, streams: source}
}

func (c *contender) startNothing(options, string) (map[kind]netip.AddrPort, error) {
	return targets(c.backend(echoPort), c.backend(sourcePort)), nil
}

// startHAProxy starts HAProxy with a thread for each processor.
func (c *contender) startHAProxy(o options, dir string) (map[kind]netip.AddrPort, error) {
	at := targets(netip.MustParseAddrPort(fmt.Sprintf("127.0.0.1:%d", servedEcho)),
		netip.MustParseAddrPort(fmt.Sprintf("127.0.0.1:%d", servedSource)))
	var config strings.Builder
	fmt.Fprintf(&config, "global\n  maxconn %d\n  nbthread %d\n", maxConnections+haproxySpare, runtime.NumCPU())
	fmt.Fprintf(&config,
		"defaults\n  mode tcp\n  maxconn %d\n  option splice-auto\n  option clitcpka\n  option srvtcpka\n"+
			"  timeout connect 1s\n  timeout client 1h\n  timeout server 1h\n", maxConnections+haproxySpare)
	for _, l := range []struct {
		name       string
		at, server netip.AddrPort
	}{{"echo", at[requests], c.backend(echoPort)}, {"source", at[streams], c.backend(sourcePort)}} {
		fmt.Fprintf(&config, "listen %s\n  bind %s\n  server backend %s\n", l.name, l.at, l.server)
	}
	file := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(config.String()), 0o600); err != nil {
		return nil, err
	}
	version, err := exec.Command(o.haproxy, "-v").Output()
	if err != nil {
		return nil, err
	}
	c.version, _, _ = strings.Cut(string(version), "\n")
	c.proxy, err = harness.Start(c.host, exec.Command(o.haproxy, "-db", "-f", file))
	return at, err
}

// startSluice starts Sluice with a Service for the backend.
func (c *contender) startSluice(o options, dir string, args ...string) error {
	served := harness.Service("relay", harness.Object{
		"clusterIP": clusterIP, "clusterIPs": []string{clusterIP}, "ipFamilies": []string{"IPv4"},
		"ports": []harness.Object{
			{"name": "echo", "port": servedEcho, "targetPort": echoPort, "protocol": "TCP"},
			{"name": "source", "port": servedSource, "targetPort": sourcePort, "protocol": "TCP"},
		},
	})
	slice := harness.EndpointSlice("relay", "IPv4", []harness.Object{
		{"name": "echo", "port": echoPort, "protocol": "TCP"}, {"name": "source", "port": sourcePort, "protocol": "TCP"},
	}, c.host.Addr4().String())
	if err := os.WriteFile(filepath.Join(dir, "relay.yaml"),
		harness.Manifest([]harness.Object{served, slice}), 0o600); err != nil {
		return err
	}
	args = append([]string{"--manifests", dir, "--hostname-override", c.name}, args...)
	var err error
	c.proxy, err = harness.Start(c.host, exec.Command(o.sluice, args...))
	return err
}

func (c *contender) startNftables(o options, dir string) (map[kind]netip.AddrPort, error) {
	return service(), c.startSluice(o, dir, "--proxy-mode", "nftables")
}

// startWithRules starts the userspace plane with the rules that lead clients of the Service to its sockets.
func (c *contender) startWithRules(o options, dir string) (map[kind]netip.AddrPort, error) {
	return service(), c.startSluice(o, dir, "--proxy-mode", "userspace", "--bind", "rules")
}

// service returns where clients of the Service connect to.
func service() map[kind]netip.AddrPort {
	cluster := netip.MustParseAddr(clusterIP)
	return targets(netip.AddrPortFrom(cluster, servedEcho), netip.AddrPortFrom(cluster, servedSource))
}

// startUserspace starts the userspace plane without rules. Sluice chooses where it listens.
func (c *contender) startUserspace(o options, dir string) (map[kind]netip.AddrPort, error) {
	args := []string{"--proxy-mode", "userspace", "--bind", "loopback"}
	if o.profile != "" {
		args = append(args, "--profiling")
	}
	if err := c.startSluice(o, dir, args...); err != nil {
		return nil, err
	}
	var at map[kind]netip.AddrPort
	err := c.proxy.Until(startLimit, "the addresses of both ports", func() (err error) {
		at, err = c.addresses(o)
		return err
	})
	return at, err
}

// addresses asks Sluice where it listens.
func (c *contender) addresses(o options) (map[kind]netip.AddrPort, error) {
	text, code, err := harness.Run(c.host, startLimit, exec.Command(o.sluice, "get", "addresses", "-o", "json"))
	if err != nil || code != 0 {
		return nil, fmt.Errorf("get addresses: exit code %d, %w: %s", code, err, text)
	}
	var list struct {
		Items []struct {
			Port    string
			Address netip.AddrPort
		}
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, err
	}
	ports := map[string]netip.AddrPort{}
	for _, item := range list.Items {
		ports[item.Port] = item.Address
	}
	if !ports["echo"].IsValid() || !ports["source"].IsValid() {
		return nil, fmt.Errorf("not both ports have an address: %s", text)
	}
	return targets(ports["echo"], ports["source"]), nil
}
