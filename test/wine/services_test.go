//go:build linux

package wine_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
	"github.com/sluice-proxy/sluice/test/wine"
)

var update = flag.Bool("update", false, "write the requests to testdata/services")

// servicesTest is the program for Windows with manifests and a fake of HNS.
type servicesTest struct {
	*testing.T
	windows *wine.Prefix
	fake    *hnstest.Fake
	sluice  string
	folder  string    // of manifests
	output  io.Writer // of the program, which outlives a file

	process  *wine.Process     // the program that runs
	settings string            // with which it runs; empty: none does
	read     int               // how many requests were compared
	names    map[string]string // of objects in golden files, by ID
}

// Each file in testdata/services is a kind of Service: what the program requests of HNS for it, and how that differs
// from kube-proxy (pkg/proxy/winkernel of release 1.36). The requests are compared as a whole, and each document with
// Microsoft's schema. In a file, in this order:
//
//   - args: the arguments of the program. It keeps running for the next file with the same arguments and the same HNS.
//   - hns: what an older HNS can do, as fields of hns.Features. Without it HNS is a recent one.
//   - start: the requests of a program that has just started.
//   - NAME.yaml, NAME: manifests, and the requests after them.
//   - delete: the requests after the manifests are removed.
//   - cleanup: the requests of --cleanup, after the program was killed.
//
// In place of IDs there are addresses in braces, of a load balancer with its ports, and names of networks.
func testDocumentsOfServices(t *testing.T, p *wine.Prefix) {
	files, err := filepath.Glob("testdata/services/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	s := newServicesTest(t, p)
	archives := map[string]*txtar.Archive{}
	for _, file := range files {
		if archives[file], err = txtar.ParseFile(file); err != nil {
			t.Fatal(err)
		}
	}
	slices.SortStableFunc(files, func(a, b string) int {
		return strings.Compare(settings(archives[a]), settings(archives[b]))
	})
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			s.T = t
			s.run(archives[file])
			if !*update {
				return
			}
			if err := os.WriteFile(file, txtar.Format(archives[file]), 0o600); err != nil {
				t.Error(err)
			}
		})
		if t.Failed() {
			return // later kinds would begin with the remaining objects
		}
	}
}

// settings returns the arguments and features for which a program needs a restart.
func settings(a *txtar.Archive) string { return section(a, "args") + "\n" + section(a, "hns") }

func section(a *txtar.Archive, name string) string {
	for _, f := range a.Files {
		if f.Name == name {
			return strings.TrimSpace(string(f.Data))
		}
	}
	return ""
}

// newServicesTest makes an HNS with a network of each kind. Both have a container of this node, and one has the
// endpoint that health checks go to.
func newServicesTest(t *testing.T, p *wine.Prefix) *servicesTest {
	t.Helper()
	fake := hnstest.New(hns.Network{Name: "pods", Type: hns.L2Bridge})
	fake.AddNetwork(hns.Network{Name: "vxlan0", Type: hns.Overlay, Remote: []hns.RemoteSubnet{
		{Prefix: netip.MustParsePrefix("10.180.1.0/24"), Provider: netip.MustParseAddr("192.168.0.3")},
	}})
	s := &servicesTest{T: t, windows: p, fake: fake, folder: t.TempDir(), output: t.Output(), names: map[string]string{}}
	s.endpoint("pods", "container", "10.180.0.9", "fd00:10:180::9")
	s.endpoint("pods", "cbr0", "10.180.0.1", "fd00:10:180::1")
	s.endpoint("vxlan0", "container", "10.180.0.9")
	// The program looks for the MAC address of the node.
	ip(t, "link", "add", "node", "type", "veth", "peer", "name", "uplink")
	t.Cleanup(func() {
		if err := exec.Command("ip", "link", "delete", "node").Run(); err != nil {
			t.Errorf("ip link delete node: %v", err)
		}
	})
	ip(t, "link", "set", "node", "address", "00:15:5d:00:00:04")
	ip(t, "address", "add", "192.168.0.4/24", "dev", "node")
	ip(t, "link", "set", "node", "up")
	s.windows.ServeHNS(fake)
	s.sluice = s.windows.Build(module + "cmd/sluice")
	return s
}

// endpoint adds an endpoint of this node that belongs to others.
func (s *servicesTest) endpoint(network, name string, addrs ...string) {
	s.Helper()
	n, err := s.fake.Network(s.Context(), network)
	if err != nil {
		s.Fatal(err)
	}
	e := hns.Endpoint{Network: n.ID, Name: name}
	for _, a := range addrs {
		e.Addrs = append(e.Addrs, netip.MustParseAddr(a))
	}
	id, err := s.fake.CreateEndpoint(s.Context(), e)
	if err != nil {
		s.Fatal(err)
	}
	s.names[n.ID], s.names[id] = "{"+network+"}", "{"+addrs[0]+"}"
}

// run carries out the steps of a file, and replaces its requests by those that were made.
func (s *servicesTest) run(a *txtar.Archive) {
	manifest := filepath.Join(s.folder, "service.yaml")
	s.start(a)
	for i := range a.Files {
		f := &a.Files[i]
		switch {
		case f.Name == "args", f.Name == "hns":
			continue
		case strings.HasSuffix(f.Name, ".yaml"):
			if err := os.WriteFile(manifest+".new", f.Data, 0o600); err != nil {
				s.Fatal(err)
			}
			if err := os.Rename(manifest+".new", manifest); err != nil {
				s.Fatal(err)
			}
			continue
		case f.Name == "delete":
			if err := os.Remove(manifest); err != nil {
				s.Fatal(err)
			}
		case f.Name == "cleanup":
			s.cleanup(a)
		}
		got := s.requests(strings.Count(string(f.Data), "\n"))
		if *update {
			f.Data = []byte(got)
		}
		if diff := cmp.Diff(string(f.Data), got); diff != "" {
			s.Fatalf("%s, -want +got (-update rewrites it):\n%s", f.Name, diff)
		}
	}
}

// start starts the program, if it does not run with the settings of a file.
func (s *servicesTest) start(a *txtar.Archive) {
	s.Helper()
	if s.settings == settings(a) {
		return
	}
	if s.process != nil {
		s.process.Kill()
	}
	s.fake.SetVersion(s.features(section(a, "hns")))
	args := []string{"--manifests=" + wine.Path(s.folder), "--hostname-override=node-a", "--iptables-min-sync-period=0s"}
	s.process = s.windows.Start(s.output, s.sluice, append(args, strings.Fields(section(a, "args"))...)...)
	s.settings = settings(a)
}

// features returns the features of an HNS; all if the list is empty.
func (s *servicesTest) features(list string) (has hns.Features) {
	s.Helper()
	for name := range strings.FieldsSeq(list) {
		field := reflect.ValueOf(&has).Elem().FieldByName(name)
		if !field.IsValid() {
			s.Fatalf("no feature %s", name)
		}
		field.SetBool(true)
	}
	if list == "" {
		return hns.Features{V2: true, RemoteSubnet: true, DSR: true, SessionAffinity: true, DualStack: true, Modify: true}
	}
	return has
}

func (s *servicesTest) cleanup(a *txtar.Archive) {
	s.Helper()
	s.process.Kill()
	if r := s.windows.Run(s.sluice, append([]string{"--cleanup"}, strings.Fields(section(a, "args"))...)...); r.Code != 0 {
		s.Errorf("--cleanup: %+v", r)
	}
	s.settings = ""
}

// requests waits for so many requests, and returns them, one line each. It verifies each document. With -update it
// waits until there are no more for a while.
func (s *servicesTest) requests(n int) string {
	s.Helper()
	const quiet = 3 * time.Second
	last, got := time.Now(), s.fake.Requests()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		before := len(got)
		if got = s.fake.Requests(); len(got) != before {
			last = time.Now()
		}
		if !*update && len(got) >= s.read+n || *update && len(got) > s.read && time.Since(last) > quiet {
			break
		}
	}
	var b strings.Builder
	for _, r := range got[s.read:] {
		if r.Document != "" {
			if err := checkDocument(r.Call, r.Document); err != nil {
				s.Errorf("%s %s: %v", r.Call, r.Document, err)
			}
		}
		b.WriteString(s.line(r) + "\n")
	}
	s.read = len(got)
	return b.String()
}

// line returns a request with names in place of IDs.
func (s *servicesTest) line(r hnstest.Request) string {
	s.Helper()
	text := r.Call
	if r.ID != "-" {
		text += " " + r.ID
	}
	if r.Document != "" {
		text += " " + r.Document
	}
	for id, name := range s.names {
		text = strings.ReplaceAll(text, id, name)
	}
	if strings.HasPrefix(r.Call, "HcnCreate") {
		s.names[r.Made] = s.name(r.Document)
	}
	return text
}

// name returns the name of an endpoint or a load balancer in golden files.
func (s *servicesTest) name(document string) string {
	s.Helper()
	var doc struct {
		Addresses []struct {
			Address string `json:"IpAddress"`
		} `json:"IpConfigurations"`
		FrontendVIPs []string
		PortMappings []struct{ ExternalPort, InternalPort int }
	}
	if err := json.Unmarshal([]byte(document), &doc); err != nil {
		s.Fatal(err)
	}
	if len(doc.Addresses) > 0 {
		return "{" + doc.Addresses[0].Address + "}"
	}
	vip := strings.Join(doc.FrontendVIPs, " ")
	for _, m := range doc.PortMappings {
		vip += fmt.Sprintf(":%d->%d", m.ExternalPort, m.InternalPort)
	}
	return "{" + vip + "}"
}
