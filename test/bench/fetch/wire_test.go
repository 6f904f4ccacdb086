//go:build linux

package fetch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

// encode encodes an object like an API server.
func encode(t *testing.T, o runtime.Object) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(o, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// list returns a page with n Services.
func list(next string, n int) *corev1.ServiceList {
	l := &corev1.ServiceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceList"}}
	l.ResourceVersion, l.Continue = "7", next
	for i := range n {
		l.Items = append(l.Items, corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("s", i), Namespace: strings.Repeat("n", i)}})
	}
	return l
}

func TestDrainList(t *testing.T) {
	for _, n := range []int{0, 1, 500} {
		body := bytes.NewReader(encode(t, list("more", n)))
		got, next, err := drainList(body)
		if err != nil || got != n || next != "more" || body.Len() != 0 {
			t.Errorf("got %d items, next %q, %v, %d bytes left, want %d items, all read", got, next, err, body.Len(), n)
		}
	}
}

// A list that ends early is an error, wherever it ends.
func TestDrainListThatEndsEarly(t *testing.T) {
	whole := encode(t, list("more", 3))
	for n := range len(whole) - 2 { // two bytes of the envelope follow the list
		if got, _, err := drainList(bytes.NewReader(whole[:n])); err == nil && got == 3 {
			continue // the list itself is complete
		} else if err == nil {
			t.Errorf("the first %d of %d bytes: %d items and no error", n, len(whole), got)
		}
	}
	if _, _, err := drainList(strings.NewReader(`{"kind":"List"}`)); err == nil || !strings.Contains(err.Error(), "protobuf") {
		t.Errorf("JSON: %v", err)
	}
}

// frame returns an event of a watch.
func frame(t *testing.T, kind string, o runtime.Object) []byte {
	t.Helper()
	event := metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: encode(t, o)}}
	b, err := event.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

func service(annotations map[string]string) *corev1.Service {
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Name: "s", Annotations: annotations},
	}
}

func TestDrainStream(t *testing.T) {
	added := frame(t, "ADDED", service(nil))
	other := frame(t, "BOOKMARK", service(nil))
	end := frame(t, "BOOKMARK", service(map[string]string{metav1.InitialEventsAnnotationKey: "true"}))
	body := bytes.NewReader(bytes.Join([][]byte{added, other, added, added, end}, nil))
	if got, err := drainStream(body); err != nil || got != 3 {
		t.Errorf("got %d objects, %v, want 3", got, err)
	}
	if got, err := drainStream(bytes.NewReader(added)); !errors.Is(err, io.EOF) || got != 1 {
		t.Errorf("without a bookmark: %d objects, %v", got, err)
	}
	if _, err := drainStream(bytes.NewReader(added[:20])); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("within an event: %v", err)
	}
	if _, err := drainStream(bytes.NewReader(frame(t, "ERROR", service(nil)))); err == nil || !strings.Contains(err.Error(), `"ERROR"`) {
		t.Errorf("an error: %v", err)
	}
}
