package kube

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// protobufPrefix begins each answer in Kubernetes' protobuf encoding. A
// runtime.Unknown follows, in whose field raw the object is.
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

// ReadByte implements io.ByteReader.
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

// wireFields iterates over the fields of a message. Bytes that are no field come last, with number 0, for the decoder
// to report.
func wireFields(message []byte) iter.Seq2[protowire.Number, []byte] {
	return func(yield func(protowire.Number, []byte) bool) {
		for len(message) > 0 {
			number, _, n := protowire.ConsumeField(message)
			if n < 0 {
				number, n = 0, len(message)
			}
			if !yield(number, message[:n]) {
				return
			}
			message = message[n:]
		}
	}
}
