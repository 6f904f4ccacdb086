//go:build linux && record

package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// TestRecord records the rules of a real kube-proxy for examples/, as messages and in readable form.
func TestRecord(t *testing.T) {
	ns := kerneltest.Namespace(t)
	kerneltest.Do(t, ns, func() error { return serveByKubeProxy(t) })
	var text strings.Builder
	for _, m := range transaction(inKernel(t, ns)) {
		m.Header.Length = uint32((16 + len(m.Data) + 3) &^ 3)
		m.Data = append(m.Data, make([]byte, int(m.Header.Length)-16-len(m.Data))...)
		b, err := m.MarshalBinary()
		must(t, err)
		fmt.Fprintln(&text, base64.StdEncoding.EncodeToString(b))
	}
	for file, content := range map[string]string{"kube-proxy.rules": text.String(), "kube-proxy.nft": listed(t, ns)} {
		if err := os.WriteFile(filepath.Join("testdata", file), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// listed returns all rules as nft lists them.
func listed(t *testing.T, ns int) string {
	t.Helper()
	var out []byte
	kerneltest.Do(t, ns, func() (err error) {
		out, err = exec.Command("nft", "-s", "list", "ruleset").Output()
		return err
	})
	return string(out)
}

// serveByKubeProxy runs kube-proxy in the thread's namespace until it has written its rules, and ends it.
func serveByKubeProxy(t *testing.T) error {
	for _, command := range []string{"ip addr add 192.168.0.2/24 dev lo", "ip addr add 2001:db8::1/64 dev lo nodad"} {
		if err := exec.Command("sh", "-c", command).Run(); err != nil {
			return fmt.Errorf("%s: %w", command, err)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	go func() { _ = http.Serve(listener, newFakeAPI(t)) }() //nolint:gosec // it serves kube-proxy alone
	cmd := exec.Command(os.Getenv("KUBE_PROXY"), "--master", "http://"+listener.Addr().String(),
		"--hostname-override", "node-a", "--proxy-mode", "nftables", "--cluster-cidr", "10.180.0.0/16,fd00:10:180::/48",
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0")
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start kube-proxy (KUBE_PROXY): %w", err)
	}
	time.Sleep(10 * time.Second) // much longer than necessary
	err = errors.Join(cmd.Process.Signal(unix.SIGTERM))
	_ = cmd.Wait() // it ends with a signal error
	t.Log(output.String())
	return err
}

// fakeAPI answers kube-proxy like an API server whose objects never change.
type fakeAPI map[string]any // lists, by the last part of their path

func newFakeAPI(t *testing.T) fakeAPI {
	t.Helper()
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", ResourceVersion: "1"}}
	for _, a := range []string{"192.168.0.2", "2001:db8::1"} {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	services := corev1.ServiceList{TypeMeta: metav1.TypeMeta{Kind: "ServiceList", APIVersion: "v1"}}
	slices := discoveryv1.EndpointSliceList{
		TypeMeta: metav1.TypeMeta{Kind: "EndpointSliceList", APIVersion: "discovery.k8s.io/v1"},
	}
	nodes := corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, Items: []corev1.Node{node}}
	nodes.ResourceVersion, services.ResourceVersion, slices.ResourceVersion = "1", "1", "1"
	for _, text := range documents(t) {
		var kind metav1.TypeMeta
		must(t, yaml.Unmarshal(text, &kind))
		switch kind.Kind {
		case "Service":
			var s corev1.Service
			must(t, yaml.Unmarshal(text, &s))
			services.Items = append(services.Items, completeService(s))
		case "EndpointSlice":
			var s discoveryv1.EndpointSlice
			must(t, yaml.Unmarshal(text, &s))
			slices.Items = append(slices.Items, completeSlice(s))
		case "Pod":
			var p corev1.Pod
			must(t, yaml.Unmarshal(text, &p))
			slices.Items = append(slices.Items, slicesOf(p)...)
		}
	}
	return fakeAPI{
		"nodes": nodes, "services": services, "endpointslices": slices,
		"servicecidrs": map[string]any{
			"kind": "ServiceCIDRList", "apiVersion": "networking.k8s.io/v1",
			"metadata": map[string]any{"resourceVersion": "1"}, "items": []any{},
		},
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func documents(t *testing.T) [][]byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(examples, "*.yaml"))
	must(t, err)
	var out [][]byte
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			out = append(out, []byte(document))
		}
	}
	return out
}

func objectMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: "default", ResourceVersion: "1"}
}

// completeService adds the fields that an API server adds.
func completeService(s corev1.Service) corev1.Service {
	s.Namespace, s.ResourceVersion = "default", "1"
	if len(s.Spec.ClusterIPs) == 0 {
		s.Spec.ClusterIPs, s.Spec.IPFamilies = []string{s.Spec.ClusterIP}, []corev1.IPFamily{corev1.IPv4Protocol}
	}
	for i := range s.Spec.Ports {
		if s.Spec.Ports[i].Protocol == "" {
			s.Spec.Ports[i].Protocol = corev1.ProtocolTCP
		}
	}
	return s
}

func completeSlice(s discoveryv1.EndpointSlice) discoveryv1.EndpointSlice {
	s.Namespace, s.ResourceVersion = "default", "1"
	none, tcp := "", corev1.ProtocolTCP
	for i := range s.Ports {
		if s.Ports[i].Name == nil {
			s.Ports[i].Name = &none
		}
		if s.Ports[i].Protocol == nil {
			s.Ports[i].Protocol = &tcp
		}
	}
	return s
}

// slicesOf returns the EndpointSlices that a controller creates for a pod of the Service in its label.
func slicesOf(p corev1.Pod) []discoveryv1.EndpointSlice {
	var out []discoveryv1.EndpointSlice
	for i, ip := range p.Status.PodIPs {
		s := discoveryv1.EndpointSlice{
			ObjectMeta:  objectMeta(fmt.Sprintf("%s-%d", p.Name, i)),
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Port: &p.Spec.Containers[0].Ports[0].ContainerPort}},
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{ip.IP}, NodeName: &p.Spec.NodeName}},
		}
		if strings.Contains(ip.IP, ":") {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
		s.Labels = map[string]string{discoveryv1.LabelServiceName: p.Labels["app"]}
		out = append(out, completeSlice(s))
	}
	return out
}

// ServeHTTP answers lists, the Node, and watches without events.
func (w fakeAPI) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	out.Header().Set("Content-Type", "application/json")
	query := r.URL.Query()
	what := filepath.Base(r.URL.Path)
	var answer any
	switch list, known := w[what]; {
	case query.Get("sendInitialEvents") != "": // a list by WatchList
		out.WriteHeader(http.StatusUnprocessableEntity)
		answer = metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure",
			Reason: metav1.StatusReasonInvalid, Code: 422,
		}
	case known && query.Get("watch") != "":
		out.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(out).Flush() // kube-proxy may have ended
		<-r.Context().Done()
		return
	case known:
		answer = list
	case what == "node-a":
		answer = w["nodes"].(corev1.NodeList).Items[0]
	default:
		out.WriteHeader(http.StatusNotFound)
		answer = metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure",
			Reason: metav1.StatusReasonNotFound, Code: 404,
		}
	}
	_ = json.NewEncoder(out).Encode(answer) // kube-proxy may have ended
}

// dumps are the kinds of nf_tables objects in the order in which they can be created, with the
// attributes of their creation: without those that the kernel assigns, such as handles.
var dumps = []struct {
	made, asked uint16
	attributes  []uint16
}{
	{unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_GETTABLE, []uint16{unix.NFTA_TABLE_NAME, unix.NFTA_TABLE_FLAGS, 6}},
	{unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_GETCHAIN, []uint16{
		unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME, unix.NFTA_CHAIN_HOOK, unix.NFTA_CHAIN_POLICY,
		unix.NFTA_CHAIN_TYPE, 10, 12,
	}},
	{unix.NFT_MSG_NEWSET, unix.NFT_MSG_GETSET, []uint16{
		unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME, unix.NFTA_SET_FLAGS, unix.NFTA_SET_KEY_TYPE,
		unix.NFTA_SET_KEY_LEN, unix.NFTA_SET_DATA_TYPE,
		unix.NFTA_SET_DATA_LEN, unix.NFTA_SET_POLICY, unix.NFTA_SET_DESC, unix.NFTA_SET_TIMEOUT,
		unix.NFTA_SET_GC_INTERVAL, unix.NFTA_SET_USERDATA,
	}},
	{
		unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_GETSETELEM,
		[]uint16{unix.NFTA_SET_ELEM_LIST_TABLE, unix.NFTA_SET_ELEM_LIST_SET, unix.NFTA_SET_ELEM_LIST_ELEMENTS},
	},
	{
		unix.NFT_MSG_NEWRULE, unix.NFT_MSG_GETRULE,
		[]uint16{unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, unix.NFTA_RULE_EXPRESSIONS, unix.NFTA_RULE_USERDATA},
	},
}

// inKernel reads all objects as messages that create them again.
func inKernel(t *testing.T, ns int) []message {
	t.Helper()
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns})
	must(t, err)
	defer func() { _ = conn.Close() }()
	var out, sets []message
	for _, d := range dumps {
		var found []message
		if d.made == unix.NFT_MSG_NEWSETELEM {
			for _, s := range sets {
				whose := keepAttributes(t, s.attributes, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME)
				found = append(found, dump(t, conn, d.asked, message{family: s.family, attributes: whose})...)
			}
		} else {
			found = dump(t, conn, d.asked, message{family: unix.NFPROTO_UNSPEC})
		}
		for i, m := range found {
			made := message{d.made, m.family, keepAttributes(t, m.attributes, d.attributes...)}
			if d.made == unix.NFT_MSG_NEWSET {
				made.attributes = append(made.attributes, setID(t, i+1)...)
				sets = append(sets, m)
			}
			out = append(out, made)
		}
	}
	return out
}

func dump(t *testing.T, conn *netlink.Conn, asked uint16, about message) []message {
	t.Helper()
	answers, err := conn.Execute(netlink.Message{
		Header: netlink.Header{
			Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | asked), Flags: netlink.Request | netlink.Dump,
		},
		Data: append([]byte{about.family, unix.NFNETLINK_V0, 0, 0}, about.attributes...),
	})
	must(t, err)
	var out []message
	for _, a := range answers {
		out = append(out, message{family: a.Data[0], attributes: a.Data[4:]})
	}
	return out
}

// keepAttributes returns only the given kinds of attributes.
func keepAttributes(t *testing.T, attributes []byte, kinds ...uint16) []byte {
	t.Helper()
	all, err := netlink.UnmarshalAttributes(attributes)
	must(t, err)
	all = slices.DeleteFunc(all, func(a netlink.Attribute) bool { return !slices.Contains(kinds, a.Type&^netlink.Nested) })
	out, err := netlink.MarshalAttributes(all)
	must(t, err)
	return out
}

// setID is the attribute that identifies a set within a transaction.
func setID(t *testing.T, n int) []byte {
	t.Helper()
	out, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_SET_ID, Data: []byte{0, 0, byte(n >> 8), byte(n)}},
	})
	must(t, err)
	return out
}

// message describes one object of nf_tables.
type message struct {
	number     uint16 // NFT_MSG_NEWTABLE and so on
	family     uint8
	attributes []byte
}

// transaction creates all objects at once, and requests an acknowledgement of the last.
func transaction(messages []message) []netlink.Message {
	begin := netlink.Header{Type: unix.NFNL_MSG_BATCH_BEGIN, Flags: netlink.Request}
	end := netlink.Header{Type: unix.NFNL_MSG_BATCH_END, Flags: netlink.Request}
	subsystem := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}
	out := []netlink.Message{{Header: begin, Data: subsystem}}
	for i, m := range messages {
		head := netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | m.number),
			Flags: netlink.Request | netlink.Create | netlink.Append,
		}
		if i == len(messages)-1 {
			head.Flags |= netlink.Acknowledge
		}
		out = append(out, netlink.Message{
			Header: head, Data: append([]byte{m.family, unix.NFNETLINK_V0, 0, 0}, m.attributes...),
		})
	}
	return append(out, netlink.Message{Header: end, Data: subsystem})
}
