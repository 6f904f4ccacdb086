//go:build linux

package conformance

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/test/lab"
)

// Program is a proxy to run as a separate process, with manifests in a folder that change while it runs.
type Program struct {
	Host      *lab.Host
	Manifests string   // a folder
	Args      []string // of the command line, without --manifests
}

// arguments returns the settings as flags.
func arguments(s settings, tr translator, mode string) []string {
	args := []string{"--hostname-override=node-a", "--proxy-mode=" + mode}
	kind, name, _ := strings.Cut(s.detector, " ")
	switch kind {
	case "":
		args = append(args, "--cluster-cidr=10.0.0.0/8,fd00:10::/32")
	case "NodeCIDR":
		args = append(args, "--detect-local-mode=NodeCIDR")
	case "bridge":
		args = append(args, "--detect-local-mode=BridgeInterface", "--pod-bridge-interface="+name)
	case "prefix":
		args = append(args, "--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix="+name)
	}
	if s.masqueradeAll {
		args = append(args, "--masquerade-all")
	}
	if len(s.nodePorts) > 0 {
		args = append(args, "--nodeport-addresses="+strings.Join(tr.texts(s.nodePorts), ","))
	}
	if s.noLocalhost {
		args = append(args, "--iptables-localhost-nodeports=false")
	}
	return args
}

// oneVariant returns one of the variants of a scenario, of alternating families: a program
// takes long to start, and tests in this process cover both families.
func (s scenario) oneVariant(variants map[string]bool) map[string]bool {
	if len(variants) == 1 {
		return variants
	}
	if s.covers[0]%2 == 0 {
		return map[string]bool{"IPv6": variants["IPv6"]}
	}
	return map[string]bool{"IPv4": variants["IPv4"]}
}

// unsupportedByProgram returns why the program cannot have these settings; empty if it can.
func (s settings) unsupportedByProgram() string {
	switch {
	case s.noExternalIPs:
		return "the program has no setting that forbids external IPs"
	case s.disabledFamily != "":
		return "a host of the lab always has both families"
	}
	return ""
}

// running is the proxy as a separate process.
type running struct {
	Program
	objects *objects
	barrier uint16
}

// launch is start for a separate process, into whose state no step can look.
func (p *proxyUnderTest) launch(o *objects) error {
	dir, err := os.MkdirTemp("/run", "manifests-") // of this process only, see lab.Enter
	if err != nil {
		return err
	}
	p.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p.running = &running{Program: Program{Host: p.host, Manifests: dir, Args: p.args}, objects: o}
	p.skipExplain = true
	if err := p.running.write(); err != nil {
		return err
	}
	p.stop = p.plane.Launch(p.t, p.running.Program)
	if err := p.running.wait(startup); err != nil {
		return err
	}
	return p.running.settle()
}

// startup is how long a program may take to start. It is generous: dozens of them start at once.
const startup = time.Minute

// settle waits until all objects are in the kernel. The program reads the files in order and passes the objects on one
// by one, so all objects written before the second barrier are in the kernel when that one is.
func (r *running) settle() error {
	for range 2 {
		r.barrier++
		if err := r.write(); err != nil {
			return err
		}
		if err := r.wait(changeTimeout); err != nil {
			return err
		}
	}
	return nil
}

// barriers returns the addresses of the barrier Service. They differ each time, because a known
// address refuses connections to all ports. The Service has no endpoints.
func (r *running) barriers() []netip.Addr {
	four := netip.AddrFrom4([4]byte{172, 30, byte(250 + r.barrier>>8), byte(r.barrier)})
	return []netip.Addr{four, lab.Analog(four)}
}

// wait waits until connections to both addresses of the barrier are refused.
func (r *running) wait(timeout time.Duration) error {
	for _, addr := range r.barriers() {
		probe := lab.Probe{Protocol: lab.TCP, To: netip.AddrPortFrom(addr, 80), Timeout: lab.Soon}
		deadline := time.Now().Add(timeout)
		refused := []lab.Outcome{lab.Refused, lab.Reset}
		for result := r.Host.Try(probe); !slices.Contains(refused, result.Outcome); result = r.Host.Try(probe) {
			if time.Now().After(deadline) {
				return fmt.Errorf("the change was not written within %v: %s is %s", timeout, probe.To, result)
			}
		}
	}
	return nil
}

// write puts all objects into one file, which it replaces atomically.
func (r *running) write() error {
	var all []string
	for _, d := range r.objects.docs {
		all = append(all, d.text)
	}
	vips := r.barriers()
	all = append(all, fmt.Sprintf(`{kind: Service, metadata: {name: barrier, namespace: conformance},
  spec: {clusterIP: %[1]q, clusterIPs: [%[1]q, %[2]q], ports: [{port: 80}]}}`, vips[0].String(), vips[1].String()))
	var file strings.Builder
	for _, text := range all {
		whole, err := manifest(text)
		if err != nil {
			return err
		}
		file.WriteString("---\n" + whole + "\n")
	}
	temp := filepath.Join(r.Manifests, ".new")
	if err := os.WriteFile(temp, []byte(file.String()), 0o644); err != nil {
		return err
	}
	return os.Rename(temp, filepath.Join(r.Manifests, "all.yaml"))
}

// manifest adds the apiVersion that scenarios leave out.
func manifest(text string) (string, error) {
	var o map[string]any
	if err := yaml.Unmarshal([]byte(text), &o); err != nil {
		return "", fmt.Errorf("read object: %w", err)
	}
	kind, _ := o["kind"].(string)
	o["apiVersion"] = map[string]string{
		"Service": "v1", "Node": "v1", "EndpointSlice": "discovery.k8s.io/v1", "ServiceCIDR": "networking.k8s.io/v1",
	}[kind]
	whole, err := json.Marshal(o)
	return string(whole), err
}
