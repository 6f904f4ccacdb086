package kube

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// protobufList returns a list as an API server sends it in protobuf.
func protobufList(t testing.TB, path string, version int, objects ...metav1.Object) []byte {
	t.Helper()
	gv, _ := schema.ParseGroupVersion(kinds[path].APIVersion)
	list, err := scheme.Scheme.New(gv.WithKind(kinds[path].Kind + "List"))
	if err != nil {
		t.Fatal(err)
	}
	var items []runtime.Object
	for _, obj := range objects {
		items = append(items, obj.(runtime.Object))
	}
	m, err := meta.ListAccessor(list)
	if err == nil {
		m.SetResourceVersion(strconv.Itoa(version))
		err = meta.SetList(list, items)
	}
	if err != nil {
		t.Fatal(err)
	}
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	encoded, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, gv), list)
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

// wholeService returns a Service with all kinds of metadata.
func wholeService(name string) *corev1.Service {
	svc := service(name, "10.96.0.1")
	svc.Labels = map[string]string{"app": "a"}
	svc.UID, svc.ResourceVersion, svc.Generation = "u1", "7", 3
	svc.CreationTimestamp = metav1.NewTime(time.Unix(1_700_000_000, 0))
	svc.Finalizers = []string{"a/b"}
	svc.OwnerReferences = []metav1.OwnerReference{{Kind: "Deployment", Name: "d"}}
	svc.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "helm", FieldsV1: metav1.NewFieldsV1(strings.Repeat("{}", 2000))},
	}
	return svc
}

func readServices(in io.Reader) ([]corev1.Service, metav1.ListMeta, error) {
	var got []corev1.Service
	m, err := readList(bufio.NewReaderSize(in, 16), serviceKind().list, func(encoded []byte) error {
		var svc corev1.Service
		err := svc.Unmarshal(encoded)
		got = append(got, svc)
		return err
	})
	return got, m, err
}

// Each object arrives whole, however the answer is split.
func TestAListInProtobufIsReadObjectByObject(t *testing.T) {
	a, b := wholeService("a"), wholeService("b")
	encoded := protobufList(t, servicesPath, 42, a, b)
	want := []corev1.Service{*a, *b}
	for name, in := range map[string]io.Reader{
		"at once":      bytes.NewReader(encoded),
		"byte by byte": iotest.OneByteReader(bytes.NewReader(encoded)),
	} {
		got, m, err := readServices(in)
		if err != nil || m.ResourceVersion != "42" {
			t.Errorf("%s: version %q, %v", name, m.ResourceVersion, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	if _, m, err := readServices(bytes.NewReader(protobufList(t, servicesPath, 7))); err != nil ||
		m.ResourceVersion != "7" {
		t.Errorf("an empty list: version %q, %v", m.ResourceVersion, err)
	}
}

// An answer that ends early is never taken for a whole list.
func TestAListThatEndsEarlyIsAnError(t *testing.T) {
	encoded := protobufList(t, servicesPath, 42, service("a", "10.96.0.1"), service("b", "10.96.0.2"))
	_, whole, err := readServices(bytes.NewReader(encoded))
	if err != nil {
		t.Fatal(err)
	}
	end := len(encoded) - len("\x1a\x00\x22\x00") // contentEncoding and contentType, which are empty
	for n := range end {
		if got, m, err := readServices(bytes.NewReader(encoded[:n])); err == nil {
			t.Fatalf("%d of %d bytes: no error, %d objects, %+v, want the error of a list like %+v",
				n, len(encoded), len(got), m, whole)
		}
	}
	broken := errors.New("the network is down")
	part := io.MultiReader(bytes.NewReader(encoded[:end-1]), iotest.ErrReader(broken))
	if _, _, err := readServices(part); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}

// An object that is longer than the rest of its list is no object.
func TestAListThatIsLongerThanItsLengthIsAnError(t *testing.T) {
	encoded := protobufList(t, servicesPath, 42, service("a", "10.96.0.1"))
	prefix, raw := splitList(t, encoded)
	short := protowire.AppendVarint(protowire.AppendTag(prefix, fieldRaw, protowire.BytesType), uint64(len(raw)-3))
	if got, _, err := readServices(bytes.NewReader(append(short, raw...))); err == nil {
		t.Errorf("no error, %d objects", len(got))
	}
}

// After a list breaks off, a new List requests it from its beginning, and not the same one again: an object that is
// deleted in between would stay.
func TestAListThatBreaksOffIsNotRepeated(t *testing.T) {
	encoded := protobufList(t, servicesPath, 42, service("a", "10.96.0.1"), service("b", "10.96.0.2"))
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests++
		_, _ = w.Write(encoded[:len(encoded)-20])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer server.Close()
	health := newServerHealth(slog.New(slog.DiscardHandler), server.URL)
	api := observed{clientOf(t, server.URL).services(""), kindServices, health}
	arrived := 0
	_, err := api.List(t.Context(), metav1.ListOptions{}, func(object) error { arrived++; return nil })
	if err == nil || unanswered(err) || requests != 1 || arrived != 1 {
		t.Errorf("%v after %d requests and %d objects, want an error of the answer after one each", err, requests, arrived)
	}
	if st := health.state(); !strings.Contains(st.Trouble, "services: failing: the answer of") {
		t.Errorf("the state is %+v", st)
	}
}

// The error of an object ends the list.
func TestAnErrorOfAnObjectEndsTheList(t *testing.T) {
	encoded := protobufList(t, servicesPath, 42, service("a", "10.96.0.1"), service("b", "10.96.0.2"))
	calls, refused := 0, errors.New("refused")
	_, err := readList(bufio.NewReader(bytes.NewReader(encoded)), serviceKind().list, func([]byte) error {
		calls++
		return refused
	})
	if !errors.Is(err, refused) || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
}

// A server, or what stands before it, may answer with something else than a list of the kind that was requested.
func TestAnAnswerOfAnotherKindIsAnError(t *testing.T) {
	services := clientOf(t, "http://127.0.0.1:1").services("").(*resource)
	for _, answer := range []string{
		`{"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"name":"a"}}]}`,
		`{"apiVersion":"v1","kind":"Status","status":"Success"}`,
		`{"apiVersion":"example.com/v1","kind":"ServiceList","items":[]}`,
		`<html>`, ``, `k8s`,
		string(protobufList(t, slicesPath, 1)), string(protobufList(t, slicesPath, 1, endpointSlice("a", "a", "10.0.0.1"))),
		string(protobufList(t, nodesPath, 1)), `{"apiVersion":"v1","kind":"PodList","items":[]}`,
	} {
		_, err := services.decode(bufio.NewReader(strings.NewReader(answer)), func(object) error {
			t.Errorf("%s: an object arrives", answer)
			return nil
		})
		if err == nil {
			t.Errorf("%s: no error", answer)
		}
	}
}

// FuzzReadList reads arbitrary answers: each gives a list or an error.
func FuzzReadList(f *testing.F) {
	f.Add(protobufList(f, servicesPath, 42, wholeService("a")))
	f.Add([]byte("k8s\x00\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Add([]byte("k8s\x00\x12\x04\x12\x02\x0a\x7f"))
	f.Fuzz(func(_ *testing.T, answer []byte) {
		_, _, _ = readServices(bytes.NewReader(answer))
	})
}

// splitList returns the bytes before the list in an answer, and the list.
func splitList(t testing.TB, answer []byte) (prefix, list []byte) {
	t.Helper()
	prefix = []byte(protobufPrefix)
	for rest := answer[len(protobufPrefix):]; len(rest) > 0; {
		number, _, size := protowire.ConsumeField(rest)
		if size < 0 {
			break
		}
		if number == fieldRaw {
			list, _ = protowire.ConsumeBytes(rest[1:])
			return prefix, list
		}
		prefix, rest = append(prefix, rest[:size]...), rest[size:]
	}
	t.Fatalf("no list in %q", answer)
	return nil, nil
}
