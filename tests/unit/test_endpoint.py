"""What the endpoint takes out of a request's body."""

from __future__ import annotations

import pytest
from starlette.exceptions import HTTPException

from cifar_ray.orchestration.endpoint import image_in

FORM = "multipart/form-data; boundary=xyz"


def form(*parts: tuple[bytes, bytes]) -> bytes:
    return b"".join(b"--xyz\r\n%b\r\n\r\n%b\r\n" % part for part in parts) + b"--xyz--\r\n"


def named(name: bytes) -> bytes:
    return b'Content-Disposition: form-data; name="%b"; filename="image.png"\r\nContent-Type: image/png' % name


def test_the_image_is_the_body_or_the_part_named_file() -> None:
    image = b"an image\r\n\r\nwith lines"
    assert image_in(image, "") == image
    assert image_in(image, "image/png") == image
    assert image_in(form((named(b"file"), image)), FORM) == image
    assert image_in(form(*[(named(b"other"), b"x")] * 19, (named(b"file"), image)), FORM) == image
    assert image_in(b"preamble\r\n" + form((named(b"file"), image)), FORM) == image


@pytest.mark.parametrize(
    ("body", "content_type", "reason"),
    [
        (form((named(b"other"), b"x")), FORM, "the form has no part named file; send an image: curl -F file=@IMAGE"),
        (form(*[(named(b"other"), b"x")] * 21), FORM, "the form has more than 20 parts"),
        (b"\r\n--" * (4 << 20), 'multipart/form-data; boundary=""', "the form has more than 20 parts"),
        (
            form((named(b"file") + b";" * (16 << 20), b"x")),
            FORM,
            "a part of the form has a head of more than 4096 bytes",
        ),
        (b"--xyz" + b";" * 5000 + b"\r\n--xyz--", FORM, "a part of the form has a head of more than 4096 bytes"),
        (b"x", FORM + ";" * 5000, "the content type is longer than 4096 bytes"),
    ],
    ids=["no file", "parts", "short boundary", "long head", "no content", "long type"],
)
def test_a_form_that_is_none_is_refused(body: bytes, content_type: str, reason: str) -> None:
    with pytest.raises(HTTPException) as caught:
        image_in(body, content_type)
    assert (caught.value.status_code, caught.value.detail) == (400, reason)
