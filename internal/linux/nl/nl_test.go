package nl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// message has an attribute 1 with the number 258, and an attribute 2 that contains an attribute 3 with the text "a".
func message() []byte {
	return []byte{
		2, 0, 0, 0,
		6, 0, 1, 0, 1, 2, 0, 0,
		12, 0, 2, 0, 6, 0, 3, 0, 'a', 0, 0, 0,
	}
}

func decode(data []byte, order binary.ByteOrder) (string, error) {
	text := ""
	err := Decode(netlink.Message{Data: data}, order, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case 1:
			text += fmt.Sprint(ad.Uint16(), " ")
		case 2:
			Nested(ad, func(ad *netlink.AttributeDecoder) { text += fmt.Sprint(ad.Type(), " ", ad.String()) })
		}
	})
	return text, err
}

func TestAttributesAreDecodedInTheirByteOrder(t *testing.T) {
	for order, want := range map[binary.ByteOrder]string{binary.BigEndian: "258 3 a", binary.LittleEndian: "513 3 a"} {
		if got, err := decode(message(), order); got != want || err != nil {
			t.Errorf("%v: got %q, %v, want %q", order, got, err, want)
		}
	}
}

// A message that is truncated within an attribute is an error, and never a panic.
func TestTruncatedMessagesAreErrors(t *testing.T) {
	for n := range message() {
		_, err := decode(message()[:n], binary.BigEndian)
		whole := n == headerLen || n >= headerLen+6 && n <= headerLen+8 // the last with padding
		if (err == nil) != whole {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

func TestMalformedNestedAttributesAreErrors(t *testing.T) {
	data := message()
	data[headerLen+12] = 200 // the length of the nested attribute
	if text, err := decode(data, binary.BigEndian); err == nil {
		t.Errorf("decoded as %q", text)
	}
}

func TestNoRequestIsSentWithACancelledContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Execute(ctx, Request{Protocol: unix.NETLINK_GENERIC, Type: unix.GENL_ID_CTRL})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// The kernel's controller of generic netlink lists itself.
func TestExecuteReturnsTheReplies(t *testing.T) {
	answers, err := Execute(t.Context(), Request{
		Protocol: unix.NETLINK_GENERIC, Type: unix.GENL_ID_CTRL, Flags: netlink.Dump,
		Header: []byte{unix.CTRL_CMD_GETFAMILY, 1, 0, 0},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range answers {
		name := ""
		err := Decode(m, binary.NativeEndian, func(ad *netlink.AttributeDecoder) {
			if ad.Type() == unix.CTRL_ATTR_FAMILY_NAME {
				name = ad.String()
			}
		})
		if err != nil {
			t.Error(err)
		}
		if name == "nlctrl" {
			return
		}
	}
	t.Errorf("nlctrl is not among %d answers", len(answers))
}
