package kube

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// largeCluster is an API server with very many Services of three endpoints, as large as controllers and Helm make them,
// which never change. It uses the protocols of kube-apiserver 1.36: TLS, HTTP/2, protobuf.
type largeCluster struct {
	b    *testing.B
	n    int
	http *httptest.Server

	service, slice []byte // objects with placeholders
}

// newLargeCluster starts the server in a network namespace.
func newLargeCluster(b *testing.B, netns, n int) *largeCluster {
	b.Helper()
	c := &largeCluster{
		b: b, n: n,
		service: protobufItem(b, largeService()),
		slice:   protobufItem(b, largeSlice()),
	}
	c.http = httptest.NewUnstartedServer(c)
	c.http.EnableHTTP2 = true
	kerneltest.Do(b, netns, func() error {
		var err error
		_ = c.http.Listener.Close()
		c.http.Listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	c.http.StartTLS()
	b.Cleanup(func() {
		c.http.CloseClientConnections()
		c.http.Close()
	})
	return c
}

// kubeconfig writes a kubeconfig for this server.
func (c *largeCluster) kubeconfig() string {
	dir := c.b.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.http.Certificate().Raw})
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), ca, 0o600); err != nil {
		c.b.Fatal(err)
	}
	path := filepath.Join(dir, "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: large, cluster: {server: %q, certificate-authority: ca.crt}}]
users: [{name: node, user: {token: none}}]
contexts: [{name: large, context: {cluster: large, user: node}}]
current-context: large
`, c.http.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.b.Fatal(err)
	}
	return path
}

// ServeHTTP implements http.Handler.
func (c *largeCluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("watch") != "" {
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	switch r.URL.Path {
	case servicesPath:
		c.list(w, r.URL.Path, c.service)
	case slicesPath:
		c.list(w, r.URL.Path, c.slice)
	case nodesPath:
		_, _ = w.Write(protobufList(c.b, nodesPath, largeVersion, largeNode()))
	case cidrsPath:
		_, _ = w.Write(protobufList(c.b, cidrsPath, largeVersion, serviceCIDR("kubernetes", "172.16.0.0/12")))
	}
}

const largeVersion = 9000000

// list sends a list with an object for each Service.
func (c *largeCluster) list(w io.Writer, path string, template []byte) {
	empty := protobufList(c.b, path, largeVersion)
	prefix, raw := splitList(c.b, empty)
	head := protowire.AppendTag(prefix, fieldRaw, protowire.BytesType)
	head = protowire.AppendVarint(head, uint64(len(raw)+c.n*len(template)))
	_, _ = w.Write(append(head, raw...))
	objects := newFiller(template)
	for i := range c.n {
		_, _ = w.Write(objects.object(i))
	}
}

// protobufItem returns the encoding of an object in a list.
func protobufItem(b *testing.B, obj interface{ Marshal() ([]byte, error) }) []byte {
	b.Helper()
	encoded, err := obj.Marshal()
	if err != nil {
		b.Fatal(err)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, fieldItems, protowire.BytesType), encoded)
}

// The placeholders in objects. Their values have the same length, so that the lengths in the encoding remain valid.
const (
	placeholderNumber    = "NUMBER"          // of the Service
	placeholderNamespace = "NSPACE"          // one of 200
	placeholderVIP       = "VIP.VIP.VIP.VIP" // the ClusterIP
	placeholderPod       = "POD.POD.POD.P"   // and one digit
	placeholderNode      = "NODE-NR"         // and one digit: one of 300
)

// filler makes the objects of Services from a template.
type filler struct {
	template []byte
	places   map[string][]int // where each placeholder is
}

func newFiller(template []byte) *filler {
	f := &filler{slices.Clone(template), map[string][]int{}}
	for placeholder := range values(0) {
		for at := 0; ; at++ {
			next := bytes.Index(template[at:], []byte(placeholder))
			if next < 0 {
				break
			}
			at += next
			f.places[placeholder] = append(f.places[placeholder], at)
		}
	}
	return f
}

// object returns the object of Service i. It is valid until the next call.
func (f *filler) object(i int) []byte {
	for placeholder, value := range values(i) {
		for _, at := range f.places[placeholder] {
			copy(f.template[at:], value)
		}
	}
	return f.template
}

// values yields the placeholders and their values for Service i.
func values(i int) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		_ = yield(placeholderNumber, fmt.Sprintf("%06d", i)) &&
			yield(placeholderNamespace, fmt.Sprintf("ns-%03d", i%200)) &&
			yield(placeholderVIP, numberedAddr("172.16", i))
		for e := range endpointsEach {
			digit := strconv.Itoa(e)
			_ = yield(placeholderPod+digit, numberedAddr("10.1"+digit, i)) &&
				yield(placeholderNode+digit, fmt.Sprintf("node-%03d", (i*endpointsEach+e)%300))
		}
	}
}

// numberedAddr returns the i-th of 100,000 addresses with a prefix; all have the same length.
func numberedAddr(prefix string, i int) string {
	return fmt.Sprintf("%s%d.1%02d.1%02d", prefix, i/10_000, i/100%100, i%100)
}

const endpointsEach = 3

func largeMeta(name, fields string) metav1.ObjectMeta {
	at := metav1.NewTime(time.Unix(1_700_000_000, 0))
	return metav1.ObjectMeta{
		Namespace: placeholderNamespace, Name: name, ResourceVersion: "8" + placeholderNumber,
		Generation: 1, CreationTimestamp: at,
		UID: types.UID("8b2f6a0e-5f0f-4a41-9c53-3d1c00" + placeholderNumber),
		ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1",
			Time: &at, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
		}},
	}
}

func largeService() *corev1.Service {
	app := "checkout-" + placeholderNumber
	labels := map[string]string{
		"app.kubernetes.io/name": app, "app.kubernetes.io/instance": app, "app.kubernetes.io/version": "1.27.3",
		"app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "checkout-4.11.0",
	}
	svc := &corev1.Service{
		ObjectMeta: largeMeta(app,
			`{"f:metadata":{"f:annotations":{".":{},"f:meta.helm.sh/release-name":{},"f:meta.helm.sh/release-namespace":{}},`+
				`"f:labels":{".":{},"f:app.kubernetes.io/instance":{},"f:app.kubernetes.io/managed-by":{},`+
				`"f:app.kubernetes.io/name":{},`+
				`"f:app.kubernetes.io/version":{},"f:helm.sh/chart":{}}},"f:spec":{"f:internalTrafficPolicy":{},"f:ports":{".":{},`+
				`"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:name":{},"f:port":{},"f:protocol":{},"f:targetPort":{}}},`+
				`"f:selector":{},"f:sessionAffinity":{},"f:type":{}}}`),
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: placeholderVIP, ClusterIPs: []string{placeholderVIP},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack),
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster), SessionAffinity: corev1.ServiceAffinityNone,
			Selector: map[string]string{"app.kubernetes.io/name": app, "app.kubernetes.io/instance": app},
			Ports: []corev1.ServicePort{
				{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromString("http")},
			},
		},
	}
	svc.Labels = labels
	svc.Annotations = map[string]string{
		"meta.helm.sh/release-name": app, "meta.helm.sh/release-namespace": placeholderNamespace,
	}
	return svc
}

func largeSlice() *discoveryv1.EndpointSlice {
	app := "checkout-" + placeholderNumber
	es := &discoveryv1.EndpointSlice{
		ObjectMeta: largeMeta(app+"-x7k2p", `{"f:addressType":{},"f:endpoints":{},"f:metadata":{"f:annotations":{".":{},`+
			`"f:endpoints.kubernetes.io/last-change-trigger-time":{}},"f:generateName":{},"f:labels":{".":{},`+
			`"f:app.kubernetes.io/instance":{},`+
			`"f:app.kubernetes.io/name":{},"f:endpointslice.kubernetes.io/managed-by":{},"f:kubernetes.io/service-name":{}},`+
			`"f:ownerReferences":{".":{},`+
			`"k:{\"uid\":\"8b2f6a0e-5f0f-4a41-9c53-3d1c00`+placeholderNumber+`\"}":{}}},"f:ports":{}}`),
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))},
		},
	}
	es.GenerateName = app + "-"
	es.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-11-20T10:11:12Z"}
	es.Labels = map[string]string{
		"app.kubernetes.io/name": app, "app.kubernetes.io/instance": app, discoveryv1.LabelServiceName: app,
		discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
	}
	es.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "Service", Name: app, UID: es.UID, Controller: new(true), BlockOwnerDeletion: new(true),
	}}
	for e := range endpointsEach {
		digit := strconv.Itoa(e)
		zone := "eu-central-1" + string(rune('a'+e))
		es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{placeholderPod + digit},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: placeholderNamespace, Name: app + "-5d8f7c9b6-zq4x" + digit,
				UID: types.UID("1c9d4e77-0b1a-4f6e-8a55-77aa0" + digit + placeholderNumber),
			},
			NodeName: new(placeholderNode + digit), Zone: new(zone),
			Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}},
		})
	}
	return es
}

func largeNode() *corev1.Node {
	n := node("node-000", "192.0.2.1")
	n.Labels = map[string]string{corev1.LabelTopologyZone: "eu-central-1z"}
	return n
}
