package kube

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sluice-proxy/sluice/internal/source/convert"
)

// protobufPrefix begins each answer in protobuf. A runtime.Unknown follows, with the object in its field raw.
const protobufPrefix = "k8s\x00"

// Numbers of fields of runtime.Unknown (generated.proto of k8s.io/apimachinery/pkg/runtime) and of every list.
const (
	fieldTypeMeta protowire.Number = 1
	fieldRaw      protowire.Number = 2
	fieldMetadata protowire.Number = 1
	fieldItems    protowire.Number = 2
)

// maxList is more than the size of any list, in bytes.
const maxList = 1 << 40

// wireList reads a list in protobuf while it arrives. It holds one object at a time: a decoder of the whole would hold
// the answer, which may be hundreds of MB, and all objects in it.
type wireList struct {
	in   *bufio.Reader
	read uint64 // bytes of in

	object bytes.Buffer     // the current one
	rest   io.LimitedReader // the part that has not arrived
}

// readList calls take with the encoding of each object of a list of a type. The bytes are valid until take returns.
func readList(in *bufio.Reader, want listType, take func(object []byte) error) (metav1.ListMeta, error) {
	l := wireList{in: in}
	var m metav1.ListMeta
	if _, err := l.in.Discard(len(protobufPrefix)); err != nil {
		return m, fmt.Errorf("read a list: %w", err)
	}
	var is runtime.TypeMeta
	for {
		number, size, err := l.field()
		if err != nil {
			return m, fmt.Errorf("read a list: %w", midway(err))
		}
		if number == fieldRaw {
			if err := want.mustBe(is.APIVersion, is.Kind); err != nil {
				return m, err
			}
			if err := l.items(l.read+size, &m, take); err != nil {
				return m, err
			}
			_, err := io.Copy(io.Discard, l.in) // reads to the end, so that the connection can be used again
			return m, err
		}
		if err = l.value(size); err == nil && number == fieldTypeMeta {
			err = is.Unmarshal(l.object.Bytes())
		}
		if err != nil {
			return m, fmt.Errorf("read a list: %w", err)
		}
	}
}

// items reads the list, which ends after so many bytes of the input.
func (l *wireList) items(end uint64, m *metav1.ListMeta, take func([]byte) error) error {
	for l.read < end {
		number, size, err := l.field()
		if err == nil && l.read+size > end {
			err = fmt.Errorf("field %d ends %d bytes behind the list", number, l.read+size-end)
		}
		if err == nil {
			err = l.value(size)
		}
		if err != nil {
			return fmt.Errorf("read a list: %w", midway(err))
		}
		if number == fieldMetadata {
			err = m.Unmarshal(l.object.Bytes())
		}
		if number == fieldItems {
			err = take(l.object.Bytes())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// field reads the number of a field and the size of its value.
func (l *wireList) field() (protowire.Number, uint64, error) {
	tag, err := binary.ReadUvarint(l)
	if err != nil {
		return 0, 0, err
	}
	number, kind := protowire.DecodeTag(tag)
	if kind != protowire.BytesType {
		return 0, 0, fmt.Errorf("field %d has wire type %d, want bytes", number, kind)
	}
	size, err := binary.ReadUvarint(l)
	if err == nil && size > maxList {
		err = fmt.Errorf("field %d is %d bytes long, want at most %d", number, size, maxList)
	}
	return number, size, midway(err)
}

// value reads the value of a field into l.object. Memory grows as the value arrives.
func (l *wireList) value(size uint64) error {
	l.object.Reset()
	l.rest = io.LimitedReader{R: l.in, N: int64(size)}
	n, err := l.object.ReadFrom(&l.rest)
	l.read += uint64(n)
	if err == nil && l.rest.N > 0 {
		err = io.ErrUnexpectedEOF
	}
	return err
}

func (l *wireList) ReadByte() (byte, error) {
	b, err := l.in.ReadByte()
	if err == nil {
		l.read++
	}
	return b, err
}

// midway returns the error of an input that ends within a value.
func midway(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// unread selects the parts of a message in protobuf that no proxy reads. They are most of a usual object, and cost less
// to find than to decode. The numbers in within and keys are less than 16, so that their tags have one byte.
type unread struct {
	fields []protowire.Number            // these are not read
	within map[protowire.Number]*unread  // parts of these are not read
	keys   map[protowire.Number][]string // of these maps only these keys are read
}

// Numbers of fields: generated.proto of apimachinery/pkg/apis/meta/v1, api/core/v1 and api/discovery/v1 in k8s.io.
func unreadService() *unread {
	return &unread{within: map[protowire.Number]*unread{
		fieldMetadata: unreadMeta(nil),                 // all labels are read, for queries
		2:             {fields: []protowire.Number{2}}, // spec: selector
		3:             {fields: []protowire.Number{2}}, // status: conditions
	}}
}

func unreadSlice() *unread {
	return &unread{within: map[protowire.Number]*unread{
		fieldMetadata: unreadMeta([]string{convert.LabelHeadless, discoveryv1.LabelServiceName}),
		2: { // endpoints
			fields: []protowire.Number{3, 5, 7}, // hostname, deprecatedTopology, zone
			within: map[protowire.Number]*unread{
				4: {fields: []protowire.Number{2, 4, 5, 6, 7}}, // targetRef: all but kind and name
			},
		},
	}}
}

func unreadMeta(labels []string) *unread {
	return &unread{
		// generateName, selfLink, resourceVersion, generation, ownerReferences, finalizers, managedFields
		fields: []protowire.Number{2, 4, 6, 7, 13, 14, 17},
		keys: map[protowire.Number][]string{
			11: labels,
			12: {
				corev1.EndpointsLastChangeTriggerTime, convert.AnnotationScheduler, convert.AnnotationWeights,
				convert.AnnotationClients, convert.AnnotationSlowStart, convert.AnnotationPreserve,
				convert.AnnotationSliceWeight, convert.AnnotationEjection, convert.AnnotationExternal,
			},
		},
	}
}

// trim appends a message to to, without the fields that are not read.
func (u *unread) trim(to, message []byte) []byte {
	for len(message) > 0 {
		number, _, size := protowire.ConsumeField(message)
		if size < 0 {
			return append(to, message...) // for the decoder to report
		}
		field := message[:size]
		message = message[size:]
		if slices.Contains(u.fields, number) {
			continue
		}
		value, n := protowire.ConsumeBytes(field[1:])
		if keys := u.keys[number]; keys != nil && n >= 0 && !slices.Contains(keys, string(keyOf(value))) {
			continue
		}
		of := u.within[number]
		if of == nil || n < 0 {
			to = append(to, field...)
			continue
		}
		at := len(to)
		to = of.trim(to, value)
		var head [2 * 10]byte
		tag := protowire.AppendTag(head[:0], number, protowire.BytesType)
		to = slices.Insert(to, at, protowire.AppendVarint(tag, uint64(len(to)-at))...)
	}
	return to
}

func keyOf(entry []byte) []byte {
	for len(entry) > 0 {
		number, _, n := protowire.ConsumeField(entry)
		if n < 0 {
			break
		}
		if key, m := protowire.ConsumeBytes(entry[1:n]); number == 1 && m >= 0 {
			return key
		}
		entry = entry[n:]
	}
	return nil
}
