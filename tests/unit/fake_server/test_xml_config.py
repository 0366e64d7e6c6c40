"""Configuration files in the form of AMPS."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from haclient.errors import UsageError
from haclient_fake_server.config import BrokerConfig, FsyncPolicy, TlsFiles
from haclient_fake_server.engine.settings import LogTopic, QueueTopic, ReplicateTo, SowTopic
from haclient_fake_server.xml_config import MAX_DEPTH, MAX_FILE_BYTES, SAMPLE, read_config

pytestmark = pytest.mark.row("AD5")

FILTERED = (
    "<JournalDirectory>j</JournalDirectory><Topic><Name>a</Name><Filter>/px &gt;</Filter></Topic>"
)
ACTION = (
    "<Action><On><Module>amps-action-on-schedule</Module></On>"
    "<Do><Module>amps-action-do-archive-journal</Module><Options><Age/></Options></Do></Action>"
)
ON_EXPIRE = (
    "<SOW><Queue><Name>q</Name></Queue></SOW><Actions><Action><On>"
    "<Module>amps-action-on-sow-expire-message</Module><Options><Topic>q</Topic></Options></On>"
    "<Do><Module>amps-action-do-publish-message</Module>"
    "<Options><Topic>dead</Topic><Data>{{AMPS_DATA}}</Data></Options></Do></Action></Actions>"
)
TRANSPORT = "<Transport><InetAddr>localhost:9007</InetAddr></Transport>"


def config_of(tmp_path: Path, *sections: str) -> BrokerConfig:
    path = tmp_path / "config.xml"
    path.write_text("\n".join(("<AMPSConfig>", *sections, "</AMPSConfig>")))
    return read_config(path)


def refusal(tmp_path: Path, *sections: str) -> str:
    """Why a file is refused, without its name."""
    with pytest.raises(UsageError) as error:
        config_of(tmp_path, *sections)
    name, text = str(error.value).split("config.xml:", 1)
    assert name == f"{tmp_path}/"
    return text


def test_the_sample_has_every_section(tmp_path: Path) -> None:
    path = tmp_path / "sample.xml"
    path.write_text(SAMPLE)
    assert read_config(path) == BrokerConfig(
        name="east",
        admin="localhost:8085",
        listen=("tcp://localhost:9007",),
        data_dir=Path("east"),
        archive_dir=Path("east-archive"),
        archive_after_s=86400.0,
        compress_after_s=7 * 86400.0,
        remove_after_s=30 * 86400.0,
        segment_bytes=64 * 2**20,
        flush_interval_s=0.1,
        fsync=FsyncPolicy.INTERVAL,
        log_topics=(LogTopic(".*", "json"),),
        sow_topics=(SowTopic("prices", ("/symbol",)),),
        queues=(
            QueueTopic(
                name="jobs",
                lease_s=30.0,
                max_per_subscription_backlog=10,
                dead_letter="failed-jobs",
            ),
        ),
        replicate_to=(ReplicateTo("tcp://localhost:9008", "sync", 30.0),),
    )


def test_without_a_log_nothing_is_recorded(tmp_path: Path) -> None:
    assert config_of(tmp_path, "<Name>a</Name>").log_topics == ()


def test_transports_of_all_types(tmp_path: Path) -> None:
    tls = "<Certificate>c.pem</Certificate><PrivateKey>k.pem</PrivateKey>"
    found = config_of(
        tmp_path,
        "<Transports>",
        "<Transport><InetAddr>9007</InetAddr><MessageType>ours</MessageType></Transport>",
        f"<Transport><Type>tcps</Type><InetAddr>[::1]:9008</InetAddr>{tls}</Transport>",
        "<Transport><Type>unix</Type><FileSystemPath>/run/a b</FileSystemPath></Transport>",
        "</Transports>",
    )
    assert found.listen == ("tcp://0.0.0.0:9007", "tcps://[::1]:9008", "unix:///run/a%20b")
    assert found.message_types == ("ours",)
    assert found.tls == TlsFiles(cert=Path("c.pem"), key=Path("k.pem"))


@pytest.mark.row("AD8")
def test_what_may_be_unsent_has_limits_in_memory_and_on_disk(tmp_path: Path) -> None:
    limits = "<MessageMemoryLimit>64MB</MessageMemoryLimit><MessageDiskLimit>2GB</MessageDiskLimit>"
    found = config_of(tmp_path, limits)
    assert (found.max_unsent_bytes, found.max_offline_bytes) == (64 * 2**20, 2 * 2**30)


@pytest.mark.row("RE7")
def test_the_interval_of_replication_acks_is_that_of_the_transport_for_replication(
    tmp_path: Path,
) -> None:
    def found(kind: str) -> float:
        more = f"<Type>{kind}</Type><AckConflationInterval>250ms</AckConflationInterval>"
        transport = TRANSPORT.replace("<Inet", f"{more}<Inet")
        return config_of(
            tmp_path, f"<Transports>{transport}</Transports>"
        ).replication_ack_interval_s

    assert found("amps-replication") == 0.25
    with pytest.raises(UsageError, match="an <AckConflationInterval> is for type amps-replication"):
        found("tcp")


@pytest.mark.parametrize(
    ("text", "expiration_s"), [("30s", 30.0), ("enabled", 0.0), ("disabled", None)]
)
def test_records_may_expire(tmp_path: Path, text: str, expiration_s: float | None) -> None:
    topic = f"<Topic><Name>a</Name><Key>/id</Key><Expiration>{text}</Expiration></Topic>"
    (found,) = config_of(tmp_path, f"<SOW>{topic}</SOW>").sow_topics
    assert found == SowTopic("a", ("/id",), expiration_s=expiration_s)


@pytest.mark.parametrize(("element", "files"), [("", 2), ("3", 3)])
def test_two_journal_files_are_allocated_unless_it_says_otherwise(
    tmp_path: Path, element: str, files: int
) -> None:
    more = f"<PreallocatedJournalFiles>{element}</PreallocatedJournalFiles>" if element else ""
    log = f"<JournalDirectory>j</JournalDirectory>{more}<Topic><Name>a</Name></Topic>"
    found = config_of(tmp_path, f"<TransactionLog>{log}</TransactionLog>")
    assert found.preallocated_files == files


def test_an_option_of_a_queue_is_an_element(tmp_path: Path) -> None:
    found = config_of(
        tmp_path,
        "<TransactionLog><JournalDirectory>j</JournalDirectory>",
        "<Topic><Name>^jobs</Name></Topic></TransactionLog>",
        "<SOW><Queue><Name>q</Name><UnderlyingTopic>jobs.a</UnderlyingTopic>",
        "<UnderlyingTopic>jobs.b</UnderlyingTopic><FairnessModel>fast</FairnessModel>",
        "<MaxCancels>3</MaxCancels><Expiration>1m</Expiration>",
        "<FileBackedMetadata>true</FileBackedMetadata></Queue></SOW>",
    )
    (queue,) = found.queues
    assert (queue.topics, queue.delivery, queue.max_cancels) == (("jobs.a", "jobs.b"), "fast", 3)
    assert (queue.expiration_s, queue.file_backed) == (60.0, True)


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("<Logging/>", "2: <Logging>: not supported; <AMPSConfig> may have: Name, Message"),
        ("\n\n<SOW><View/></SOW>", "4: <View>: not supported; <SOW> may have: Topic, Queue"),
        ("<Name>a</Name><Name>b</Name>", "2: <Name>: given twice"),
        ("<SOW/><SOW/>", "2: <SOW>: given twice"),
        ("<Name>${HOST}</Name>", "2: <Name>: variables are not replaced"),
        ("<Name/>", "2: <Name>: wanted a text"),
        ("<Name><b>x</b></Name>", "2: <Name>: wanted a text"),
        ("words", "1: <AMPSConfig>: wanted elements, found text"),
        ('<Name lang="en">a</Name>', "2: <Name>: attributes are not supported"),
        ("<SOW><Topic><Key>/id</Key></Topic></SOW>", "2: <Topic>: needs a <Name>"),
        (
            "<SOW><Topic><Name>t</Name><Key>id</Key></Topic></SOW>",
            "2: <Topic>: sow topic 't': key 'id': ",
        ),
        ("<Transports/>", "2: <Transports>: wanted a <Transport>"),
        ("<TransactionLog/>", "2: <TransactionLog>: needs a <JournalDirectory>"),
        (
            f"<Transports>{TRANSPORT.replace('</Tr', '<Protocol>fix</Protocol></Tr')}</Transports>",
            "2: <Protocol>: 'fix': wanted amps",
        ),
        (
            "<Transports><Transport><Type>unix</Type></Transport></Transports>",
            "2: <Transport>: wanted an <InetAddr>, or a <FileSystemPath> of type unix",
        ),
        (
            f"<Transports>{TRANSPORT.replace('<Inet', '<Type>tcps</Type><Inet')}</Transports>",
            "2: <Transport>: a <Certificate> is for type tcps, which needs one",
        ),
        (
            "<SOW><Queue><Name>q</Name>\n<MaxBacklog>many</MaxBacklog></Queue></SOW>",
            "3: <MaxBacklog>: 'many': wanted a whole number",
        ),
        (
            "<SOW><Queue><Name>q</Name><LeasePeriod>soon</LeasePeriod></Queue></SOW>",
            "2: <LeasePeriod>: wanted an interval like 100ms or 2s",
        ),
        (
            "<SOW><Queue><Name>q</Name><MaxBacklog>-1</MaxBacklog></Queue></SOW>",
            "2: <Queue>: queue 'q': max_backlog=-1",
        ),
        (
            "<Replication><Destination><Topic><Name>a</Name></Topic></Destination></Replication>",
            "2: <Topic>: everything that is logged is replicated: wanted <Name>.*</Name>",
        ),
        ("<Replication><Destination/></Replication>", "2: <Destination>: wanted one <Transport>"),
        (
            f"<TransactionLog>{FILTERED}</TransactionLog>",
            "2: <Topic>: log topic 'a': ",
        ),
        (
            "<Actions><Action><On/></Action></Actions>",
            "2: <Action>: wanted one <On> and one <Do>",
        ),
        (
            f"<Actions>{ACTION.replace('<Age/>', '')}</Actions>",
            "2: <Action>: wanted each action once, with an <Age>",
        ),
        (
            f"<Actions>{2 * ACTION.replace('<Age/>', '<Age>1d</Age>')}</Actions>",
            "2: <Action>: wanted each action once, with an <Age>",
        ),
        (
            f"<Actions>{ACTION.replace('archive', 'rotate')}</Actions>",
            "2: <Module>: 'amps-action-do-rotate-journal': wanted ",
        ),
        (
            ON_EXPIRE.replace("<Topic>q", "<Topic>other"),
            "2: <Action>: wanted the <Topic> and the <MessageType> of a queue, once",
        ),
        (
            ON_EXPIRE.replace("<Data>", "<MessageType>fix</MessageType><Data>"),
            "2: <Action>: wanted the <MessageType> of the queue",
        ),
        (
            ON_EXPIRE.replace("<Topic>dead</Topic>", ""),
            "2: <Action>: wanted a <Topic>, and the <Data> {{AMPS_DATA}}",
        ),
        (
            ON_EXPIRE.replace("<Topic>dead", "<Topic>q"),
            "2: <Action>: queue 'q': dead_letter 'q' is one of its own topics",
        ),
        (
            ON_EXPIRE.replace("{{AMPS_DATA}}", "gone"),
            "2: <Data>: 'gone': wanted {{AMPS_DATA}}",
        ),
        (
            ON_EXPIRE.replace("<Topic>q", "<Every>1s</Every><Topic>q"),
            "2: <Every>: not supported; <Options> may have: Topic, MessageType",
        ),
        ("<Name>a</Title>", "2: this is not XML: mismatched tag"),
        ("<a>" * MAX_DEPTH, "2: <a>: more than 16 elements within each other"),
    ],
)
def test_what_is_not_carried_out_is_refused_with_file_and_line(
    section: str, told: str, tmp_path: Path
) -> None:
    assert refusal(tmp_path, section).startswith(told)


def test_a_wrong_value_that_only_the_whole_shows_is_refused_with_the_file(tmp_path: Path) -> None:
    text = refusal(tmp_path, "<Admin><InetAddr>8085</InetAddr></Admin>")
    assert text.startswith(" broker 'broker': admin='0.0.0.0:8085': others reach it")


def test_a_pattern_that_is_none_is_refused_with_the_file(tmp_path: Path) -> None:
    log = "<JournalDirectory>j</JournalDirectory><Topic><Name>(</Name></Topic>"
    text = refusal(tmp_path, f"<TransactionLog>{log}</TransactionLog>")
    assert text.startswith("2: <Topic>: log topic '(': topic '(' is not a valid pattern")


@pytest.mark.parametrize(
    "doctype",
    [
        '<!DOCTYPE a [<!ENTITY b "bb"><!ENTITY c "&b;&b;">]>',
        '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE a SYSTEM "http://127.0.0.1:1/a.dtd">',
        '<!DOCTYPE a [<!ENTITY % b "bb"> %b;]>',
    ],
)
def test_entities_are_refused_before_anything_is_read(doctype: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.xml"
    path.write_text(f"<?xml version='1.0'?>\n{doctype}\n<AMPSConfig><Name>&b;</Name></AMPSConfig>")
    with pytest.raises(UsageError, match=r"bomb\.xml:2: a document type, and so entities"):
        read_config(path)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "bad.xml:1: this is not XML: no element found"),
        (b"<Config/>", "bad.xml:1: <Config>: wanted <AMPSConfig>"),
        (
            b"<?xml version='1.0' encoding='martian'?><a/>",
            "bad.xml: its encoding cannot be read",
        ),
        (b"<?xml version='1.0' encoding='hex'?><a/>", "bad.xml: its encoding cannot be read"),
        (b"<a>\xff</a>", "bad.xml:1: this is not XML: not well-formed (invalid token)"),
        (b" " * (MAX_FILE_BYTES + 1), f"bad.xml: wanted at most {MAX_FILE_BYTES} bytes"),
    ],
)
def test_what_is_no_such_file_is_refused(data: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.xml"
    path.write_bytes(data)
    with pytest.raises(UsageError) as error:
        read_config(path)
    assert told in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.xml: No such file or directory"):
        read_config(tmp_path / "none.xml")


@pytest.mark.parametrize("address", ["127.0.0.1:95294", "127.0.0.1", "127.0.0.1:x"])
def test_an_address_that_nobody_can_listen_on_is_refused_with_the_file(
    address: str, tmp_path: Path
) -> None:
    transport = f"<Transport><InetAddr>{address}</InetAddr></Transport>"
    assert "cannot listen on" in refusal(tmp_path, f"<Transports>{transport}</Transports>")


def test_a_relative_socket_counts_from_the_working_directory(tmp_path: Path) -> None:
    transport = "<Transport><Type>unix</Type><FileSystemPath>./b.sock</FileSystemPath></Transport>"
    config = config_of(tmp_path, f"<Transports>{transport}</Transports>")
    assert config.listen == (f"unix://{quote(str(Path('b.sock').absolute()))}",)


def test_the_transport_of_a_destination_may_have_a_name(tmp_path: Path) -> None:
    transport = "<Transport><Name>r</Name><InetAddr>h:1</InetAddr></Transport>"
    topic = "<Topic><Name>.*</Name></Topic>"
    log = f"<TransactionLog><JournalDirectory>j</JournalDirectory>{topic}</TransactionLog>"
    replication = f"<Replication><Destination>{transport}</Destination></Replication>"
    assert config_of(tmp_path, log, replication).replicate_to[0].address == "tcp://h:1"
