package kube

import (
	"bufio"
	"bytes"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/source/convert"
)

// The conversion of an object does not depend on unread fields: the results for random objects are the same with and
// without them.
func TestUnreadFieldsAreNotRead(t *testing.T) {
	converter := convert.Converter{AllowExternalIPs: true}
	random := randfill.NewWithSeed(1).NilChance(0.2).NumElements(0, 3).MaxDepth(12).Funcs(
		func(v *intstr.IntOrString, _ randfill.Continue) { *v = intstr.FromInt32(80) },
		func(v *metav1.FieldsV1, _ randfill.Continue) { *v = *metav1.NewFieldsV1(`{"f:spec":{}}`) },
		func(v *metav1.Time, _ randfill.Continue) { *v = metav1.Unix(1_700_000_000, 0) },
	)
	coin := rand.New(rand.NewPCG(1, 1))
	pick := func(labels map[string]string, key, value string) map[string]string {
		if coin.IntN(2) == 0 {
			return labels
		}
		return mergeLabels(labels, key, value)
	}
	for range 300 {
		var svc corev1.Service
		random.Fill(&svc)
		svc.Labels = pick(svc.Labels, convert.LabelProxyName, "other")
		svc.Annotations = pick(svc.Annotations, convert.AnnotationScheduler, "wrr")
		svc.Annotations = pick(svc.Annotations, convert.AnnotationWeights, "node-a=3, bad")
		svc.Annotations = pick(svc.Annotations, convert.AnnotationClients, "proxy-protocol")
		svc.Annotations = pick(svc.Annotations, convert.AnnotationSlowStart, "30s")
		svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "10.96.0.1", nil
		got := &corev1.Service{}
		trimmed(t, unreadService(), &svc, got)
		wantService, wantProblems := converter.Service(&svc)
		gotService, gotProblems := converter.Service(got)
		compare(t, wantService, gotService)
		compare(t, wantProblems, gotProblems)
		if got.UID != svc.UID {
			t.Errorf("the UID is %q, want %q, which Events need", got.UID, svc.UID)
		}

		var es discoveryv1.EndpointSlice
		random.Fill(&es)
		es.AddressType = discoveryv1.AddressTypeIPv4
		for i := range es.Endpoints {
			es.Endpoints[i].Addresses = []string{"10.0.0.1"}
			if ref := es.Endpoints[i].TargetRef; ref != nil && coin.IntN(2) == 0 {
				ref.Kind = "Pod"
			}
		}
		es.Labels = pick(pick(es.Labels, discoveryv1.LabelServiceName, "web"), convert.LabelHeadless, "")
		es.Annotations = pick(es.Annotations, corev1.EndpointsLastChangeTriggerTime, "2026-11-20T10:11:12Z")
		es.Annotations = pick(es.Annotations, convert.AnnotationSliceWeight, "70")
		gotSlice := &discoveryv1.EndpointSlice{}
		trimmed(t, unreadSlice(), &es, gotSlice)
		want, wantProblems := converter.Slice(&es)
		have, gotProblems := converter.Slice(gotSlice)
		compare(t, want, have)
		compare(t, wantProblems, gotProblems)
	}
}

func mergeLabels(labels map[string]string, key, value string) map[string]string {
	if labels == nil {
		labels = map[string]string{}
	}
	labels[key] = value
	return labels
}

// trimmed decodes an object without the fields that u removes.
func trimmed(
	t *testing.T, u *unread, from interface{ Marshal() ([]byte, error) }, to interface{ Unmarshal([]byte) error },
) {
	t.Helper()
	whole, err := from.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if err := to.Unmarshal(u.trim(nil, whole)); err != nil {
		t.Fatal(err)
	}
}

func compare(t *testing.T, want, got any) {
	t.Helper()
	if !reflect.DeepEqual(want, got) {
		t.Errorf("with and without unread fields: %s",
			cmp.Diff(want, got, cmp.Exporter(func(reflect.Type) bool { return true })))
	}
}

// Objects of a list share memory while they are decoded, and nothing of it afterwards: each
// is converted as it would be alone.
func TestObjectsOfAListDoNotMix(t *testing.T) {
	web, db := service("web", "10.96.0.1"), service("db", "10.96.0.2")
	web.Spec.Ports = append(web.Spec.Ports, corev1.ServicePort{Name: "b", Port: 81, NodePort: 30081})
	web.Labels = map[string]string{convert.LabelProxyName: "other"}
	web.Spec.ClusterIPs = []string{"10.96.0.1", "fd00::1"}
	web.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	web1, db1 := endpointSlice("web-1", "web", "10.0.0.1"), endpointSlice("db-1", "db", "10.0.0.2")
	web1.Ports = append(web1.Ports, discoveryv1.EndpointPort{Name: new("b"), Port: new(int32(81))})
	web1.Endpoints = append(web1.Endpoints,
		discoveryv1.Endpoint{Addresses: []string{"10.0.0.3"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}})
	web1.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-11-20T10:11:12Z"}

	api := newAPIServer(t)
	client := api.client()
	listed := func(from lister, path string, objects ...metav1.Object) cluster.Delta {
		store := cluster.NewStore()
		src := New(store, Options{Client: client})
		to := src.feeds[map[string]int{servicesPath: 0, slicesPath: 1}[path]].to
		to.begin()
		list := bufio.NewReader(bytes.NewReader(protobufList(t, path, 1, objects...)))
		if _, err := from.(*resource).decode(list, to.arrive); err != nil {
			t.Fatal(err)
		}
		return store.Take()
	}
	alone := func(from lister, path string, objects ...metav1.Object) []cluster.State {
		var all []cluster.State
		for _, obj := range objects {
			all = append(all, listed(from, path, obj).Services...)
		}
		slices.SortFunc(all, func(a, b cluster.State) int { return a.Name.Compare(b.Name) })
		return all
	}
	compare(t, alone(client.services(""), servicesPath, web, db),
		listed(client.services(""), servicesPath, web, db).Services)
	compare(t, alone(client.slices, slicesPath, web1, db1), listed(client.slices, slicesPath, web1, db1).Services)
}

// A message that is no protobuf is left as it is, for its decoder to report.
func TestWhatIsNoProtobufIsLeft(t *testing.T) {
	for _, message := range []string{"\xff", "\x0a\x7f", "\x0a\x02\xff\xff"} {
		if got := string(unreadService().trim(nil, []byte(message))); got != message {
			t.Errorf("%q became %q", message, got)
		}
	}
}
